"""The entries of environments of other packages, made from their names."""

from functools import partial

from gigpo_jax.env_bridge.actions import Response, parse_tagged
from gigpo_jax.env_bridge.prompts import (
    TAGGED_THOUGHT,
    Compact,
    Instruct,
    PromptInput,
    PromptTemplate,
)
from gigpo_jax.envs.entry_types import Environment, Option
from gigpo_jax.envs.games import RANDOM_FRACTION_OPTION


def gymnasium_entry(source: str) -> Environment:
    """Makes the entry of a Gymnasium environment.

    Args:
      source: ID in Gymnasium's registry, or MODULE:ID; importing the module registers it.
    """
    has_bot = source.rpartition(":")[2].rpartition("/")[2].startswith("BabyAI")
    return Environment(
        build=f"gigpo_jax.envs.incoming.gymnasium:{source}",
        styles=_make_styles("You act in an environment, one action at a time."),
        parse=partial(parse_tagged, keeps_case=True),
        expert=f"gigpo_jax.envs.incoming.babyai:{source}" if has_bot else None,
        max_steps=50,
        history=2,
        invalid_penalty=0.1,
        options={
            "kwargs": Option(dict, {}, "keyword arguments of gymnasium.make"),
            "renderer": Option(
                str, "", "function or Renderer, module:NAME; empty: the ready one, or none for text"
            ),
            "actions": Option(tuple, None, "names of discrete actions, in the order of numbers"),
            "admissible": Option(
                str, "", "key of info that lists the admissible actions of a text environment"
            ),
            "task": Option(str, None, "words of the task; default: the renderer's"),
            "anchor": Option(str, "text", "anchor state: text, or state (the renderer tells it)"),
            "won_above": Option(
                float, None, "reward above which an episode that terminates is won; default: 0"
            ),
            "time_limit": Option(
                int, None, "length of an episode in the environment; default: the registered one"
            ),
        },
        expert_options={
            "kwargs": Option(dict, {}, "the kwargs of env.options: the bot plays in a copy"),
            "random_fraction": RANDOM_FRACTION_OPTION,
        }
        if has_bot
        else {},
    )


def mcp_entry(source: str) -> Environment:
    """Makes the entry of an MCP server.

    Args:
      source: Command that starts the server, or its URL.
    """
    return Environment(
        build=f"gigpo_jax.envs.incoming.mcp:{source}",
        styles=_make_styles("You do a task with tools, one call at a time."),
        parse=partial(parse_tagged, keeps_case=True),
        expert=None,
        max_steps=10,
        history=4,
        invalid_penalty=0.1,
        options={
            "tasks": Option(str, "", "JSONL file: task, answer, and if needed split, id, type"),
            "scorer": Option(str, "", "function of an answer, module:NAME; empty: equal answers"),
            "anchor": Option(str, "text", "anchor state: text, or state (all calls so far)"),
            "restart": Option(bool, True, "whether the server is started for every episode"),
            "result_characters": Option(int, 4000, "largest number of characters of a result"),
        },
    )


def openenv_entry(source: str) -> Environment:
    """Makes the entry of an OpenEnv server.

    Args:
      source: URL of the server, or image of its container.
    """
    return Environment(
        build=f"gigpo_jax.envs.incoming.openenv:{source}",
        styles=_make_styles("You act in an environment, one action at a time."),
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
            "anchor": Option(
                str, "text", "anchor state: text, state (all actions so far), or a field"
            ),
            "won_above": Option(float, 0.0, "reward above which an episode that ends is won"),
            "answer_timeout_s": Option(float, 20.0, "time limit of an answer of the server, s"),
            "result_characters": Option(int, 4000, "largest number of characters of a text"),
        },
    )


def verifiers_entry(source: str) -> Environment:
    """Makes the entry of an environment of verifiers.

    Args:
      source: Module with the function `load_environment`.
    """
    return Environment(
        build=f"gigpo_jax.envs.incoming.verifiers:{source}",
        styles={"full": show_conversation, "compact": Compact()},
        parse=parse_message,
        expert=None,
        max_steps=10,
        history=10,
        invalid_penalty=0.0,
        options={
            "kwargs": Option(dict, {}, "keyword arguments of load_environment"),
            "anchor": Option(str, "text", "anchor state: text, or state (all messages so far)"),
            "won_from": Option(
                float, None, "reward from which an episode is won; default: pass_threshold"
            ),
            "result_characters": Option(int, 4000, "largest number of characters of a reply"),
        },
        action_tags=(),
    )


def _make_styles(introduction: str) -> dict[str, PromptTemplate]:
    return {
        "full": Instruct(introduction),
        "tagged": Instruct(introduction, thought=TAGGED_THOUGHT),
        "compact": Compact(),
    }


def parse_message(response: str) -> Response:
    """The whole response is the message; rubrics judge its format."""
    return Response(response, True)


def show_conversation(inputs: PromptInput, /) -> str:
    """Makes the prompt for language models: the conversation without further instructions."""
    lines = [inputs.task]
    if inputs.steps > len(inputs.history):
        lines.append("[earlier messages are left out]")
    for number, event in enumerate(inputs.history, inputs.steps - len(inputs.history)):
        # The first observation only says that there was no message yet.
        if number:
            lines.append("[reply] " + event.observation)
        lines.append("[you] " + event.action)
    if inputs.steps:
        lines.append("[reply] " + inputs.observation)
    return "\n".join(lines)
