"""The entry that all card games share."""

from functools import partial

from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.envs.cards import responses
from gigpo_jax.envs.cards.prompt import Rules
from gigpo_jax.envs.entry_types import Environment, Option
from gigpo_jax.envs.games import (
    ANCHOR,
    OBSERVATION_OPTION,
    RANDOM_FRACTION_OPTION,
    show_observation,
)

# For comparisons with results in the public environments.
COMPAT_OPTION = Option(
    bool,
    False,
    "whether formulas have the value that Python gives them: digits join, ** and // count",
)


def card_entry(name: str, rules: Rules, max_steps: int, **options: Option) -> Environment:
    """Makes the entry of a card game.

    Args:
      name: Name of the game and of its folder.
      rules: Prompt with the rules and the actions.
      max_steps: Published length of an episode.
      options: Options of this game alone.
    """
    return Environment(
        build=f"gigpo_jax.envs.{name}.env:make",
        styles={"full": rules, "compact": show_observation},
        parse=partial(responses.parse_card_response, actions=rules.actions),
        expert=f"gigpo_jax.envs.{name}.env:make_expert",
        about=Instruct(rules.text),
        write=responses.write,
        action_tags=(),
        max_steps=max_steps,
        history=0,
        invalid_penalty=0.1,
        options={
            "observation": OBSERVATION_OPTION,
            **options,
        },
        anchor=ANCHOR,
        run_arguments=("max_steps", "regret"),
        expert_options={"random_fraction": RANDOM_FRACTION_OPTION},
    )
