"""The entries of OpenEnv servers, made from their URLs or images."""

from functools import partial

from gigpo_jax.core.settings import Rule
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.envs.entry_types import Environment, Option
from gigpo_jax.envs.gymnasium.entry import instruct_styles


def openenv_entry(source: str) -> Environment:
    """Makes the entry of an OpenEnv server.

    Args:
      source: URL of the server, or image of its container.
    """
    return Environment(
        build=f"gigpo_jax.envs.openenv.env:OpenEnvEnv:{source}",
        styles=instruct_styles("You act in an environment, one action at a time."),
        parse=partial(parse_tagged, keeps_case=True),
        expert=None,
        max_steps=50,
        history=2,
        invalid_penalty=0.1,
        options={
            "tasks": Option(str, "seeds", "tasks: seeds of reset, or server (those it lists)"),
            "kwargs": Option(dict, {}, "further arguments of each reset"),
            "field": Option(str, "", "field of actions to fill; empty: the only or required one"),
            "actions": Option(tuple, None, "names of discrete actions, in the schema's order"),
            "admissible": Option(str, "", "field of observations that lists possible actions"),
            "text": Option(str, "", "field of observations to show; empty: the only text, or all"),
            "task": Option(str, "get as much reward as you can", "words of the task"),
            "task_field": Option(str, "", "field of the first observation with the task"),
            "won_above": Option(float, 0.0, "reward above which an episode that ends is won"),
            "answer_timeout_s": Option(float, 20.0, "time limit of an answer of the server, s"),
            "result_characters": Option(int, 4000, "largest number of characters of a text"),
        },
        anchor=Rule("text, state (all actions so far), or a field of observations", bool),
        run_arguments=("anchor",),
    )
