"""The entry of Sokoban."""

from gigpo_jax.envs.entry_types import Environment, Option
from gigpo_jax.envs.games import (
    ANCHOR,
    OBSERVATION_OPTION,
    RANDOM_FRACTION_OPTION,
    show_observation,
)
from gigpo_jax.envs.sokoban.prompt import ABOUT, CHAT, full, parse_move

ENVIRONMENT = Environment(
    build="gigpo_jax.envs.sokoban.env:make",
    styles={"full": full, "chat": CHAT, "compact": show_observation},
    parse=parse_move,
    expert="gigpo_jax.envs.sokoban.env:make_expert",
    about=ABOUT,
    max_steps=15,
    history=2,
    invalid_penalty=0.1,
    options={
        "observation": OBSERVATION_OPTION,
        # size and boxes are the difficulty: other trainers use several.
        "size": Option(int, 6, "number of rows and columns of a room, border included: 5 to 10"),
        "boxes": Option(int, 1, "number of boxes, and of targets: 1 to 3"),
    },
    anchor=ANCHOR,
    run_arguments=("max_steps", "regret"),
    expert_options={"random_fraction": RANDOM_FRACTION_OPTION},
)
