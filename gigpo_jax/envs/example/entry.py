"""The entry of the example (docs/environments.md explains it)."""

from functools import partial

from gigpo_jax.core.settings import one_of
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.env_bridge.instructions import TAGGED_THOUGHT, Instruct
from gigpo_jax.env_bridge.prompts import Compact
from gigpo_jax.envs.entry_types import Environment, Option
from gigpo_jax.envs.games import RANDOM_FRACTION_OPTION

ENVIRONMENT = Environment(
    build="gigpo_jax.envs.example.env:TreasureEnv",
    styles={
        "full": Instruct("You look for a treasure in a row of drawers."),
        "tagged": Instruct("You look for a treasure in a row of drawers.", thought=TAGGED_THOUGHT),
        "compact": Compact(),
    },
    parse=partial(parse_tagged, fallback_chars=30),
    expert="gigpo_jax.envs.example.env:TreasureExpert",
    max_steps=12,
    history=2,
    invalid_penalty=0.1,
    options={
        "drawers": Option(int, 4, "number of drawers in the row"),
        "games": Option(int, 64, "number of tasks in a split"),
    },
    anchor=one_of("text", "state"),
    run_arguments=("anchor",),
    expert_options={"random_fraction": RANDOM_FRACTION_OPTION},
)
