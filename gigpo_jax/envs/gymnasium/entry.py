"""The entries of Gymnasium's environments, made from their names."""

from functools import partial

from gigpo_jax.core.settings import one_of
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.env_bridge.instructions import TAGGED_THOUGHT, Instruct
from gigpo_jax.env_bridge.prompts import Compact, PromptTemplate
from gigpo_jax.envs.entry_types import Environment, Option
from gigpo_jax.envs.games import RANDOM_FRACTION_OPTION
from gigpo_jax.envs.gymnasium.babyai import show_view


def gymnasium_entry(source: str) -> Environment:
    """Makes the entry of a Gymnasium environment.

    Args:
      source: ID in Gymnasium's registry, or MODULE:ID; importing the module registers it.
    """
    has_bot = source.rpartition(":")[2].rpartition("/")[2].startswith("BabyAI")
    return Environment(
        build=f"gigpo_jax.envs.gymnasium.env:GymnasiumEnv:{source}",
        styles=instruct_styles("You act in an environment, one action at a time.")
        | ({"view": show_view} if has_bot else {}),
        parse=partial(parse_tagged, keeps_case=True),
        expert=f"gigpo_jax.envs.gymnasium.babyai:BotExpert:{source}" if has_bot else None,
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
            "won_above": Option(
                float, None, "reward above which an episode that terminates is won; default: 0"
            ),
            "time_limit": Option(
                int, None, "length of an episode in the environment; default: the registered one"
            ),
        },
        # The renderer tells the state.
        anchor=one_of("text", "state"),
        run_arguments=("anchor",),
        expert_options={
            "kwargs": Option(dict, {}, "the kwargs of env.options: the bot plays in a copy"),
            "random_fraction": RANDOM_FRACTION_OPTION,
        }
        if has_bot
        else {},
    )


def instruct_styles(introduction: str) -> dict[str, PromptTemplate]:
    """Makes the prompt styles of environments with no words of their own, OpenEnv and MCP too."""
    return {
        "full": Instruct(introduction),
        "tagged": Instruct(introduction, thought=TAGGED_THOUGHT),
        "compact": Compact(),
    }
