"""The entry of FrozenLake."""

from functools import partial

from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.envs.entry_types import Environment, Option
from gigpo_jax.envs.frozenlake.prompt import FULL, TAGGED
from gigpo_jax.envs.games import (
    ANCHOR,
    RANDOM_FRACTION_OPTION,
    show_observation,
)

ENVIRONMENT = Environment(
    build="gigpo_jax.envs.frozenlake.env:make",
    styles={"full": FULL, "tagged": TAGGED, "compact": show_observation},
    parse=partial(parse_tagged, fallback_chars=20),
    expert="gigpo_jax.envs.frozenlake.env:make_expert",
    max_steps=15,
    history=2,
    invalid_penalty=0.1,
    options={
        "size": Option(int, 4, "rows and columns of a lake: 3 to 8"),
        "slippery": Option(
            bool, False, "a third of the moves goes where it should, the others sideways"
        ),
    },
    anchor=ANCHOR,
    run_arguments=("max_steps", "regret"),
    expert_options={"random_fraction": RANDOM_FRACTION_OPTION},
)
