"""The entries of MCP servers, made from their commands or URLs."""

from functools import partial

from gigpo_jax.core.settings import one_of
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.envs.entry_types import Environment, Option
from gigpo_jax.envs.gymnasium.entry import instruct_styles


def mcp_entry(source: str) -> Environment:
    """Makes the entry of an MCP server.

    Args:
      source: Command that starts the server, or its URL.
    """
    return Environment(
        build=f"gigpo_jax.envs.mcp.env:McpEnv:{source}",
        styles=instruct_styles("You do a task with tools, one call at a time."),
        parse=partial(parse_tagged, keeps_case=True),
        expert=None,
        max_steps=10,
        history=4,
        invalid_penalty=0.1,
        options={
            "tasks": Option(str, "", "JSONL file: task, answer, and if needed split, id, type"),
            "scorer": Option(str, "", "function of an answer, module:NAME; empty: equal answers"),
            "restart": Option(bool, True, "whether the server is started for every episode"),
            "result_characters": Option(int, 4000, "largest number of characters of a result"),
        },
        # A state is all calls so far.
        anchor=one_of("text", "state"),
        run_arguments=("anchor",),
    )
