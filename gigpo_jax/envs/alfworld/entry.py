"""The entry of ALFWorld."""

from functools import partial

from gigpo_jax.core.references import ReferenceTable
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.envs.alfworld.anchors import ANCHOR
from gigpo_jax.envs.entry_types import Environment, ExampleGames, Option

ENVIRONMENT = Environment(
    build="gigpo_jax.envs.alfworld.env:make",
    styles=ReferenceTable(
        {
            "full": "gigpo_jax.envs.alfworld.full_prompt:FULL",
            "tagged": "gigpo_jax.envs.alfworld.full_prompt:TAGGED",
            "compact": "gigpo_jax.envs.alfworld.prompt:COMPACT",
        }
    ),
    parse=partial(parse_tagged, fallback_chars=30),
    expert="gigpo_jax.envs.alfworld.expert.demonstrator:Demonstrator",
    generate="gigpo_jax.envs.alfworld.data.generate:ensure_games",
    examples=ExampleGames({"splits": {"train": 48}, "size": "small", "seed": 1}),
    max_steps=50,
    history=2,
    invalid_penalty=0.1,
    options={
        "data": Option(
            str, "", "folder with the splits: generated games, or $ALFWORLD_DATA/json_2.1.1"
        ),
        "engine": Option(
            str,
            "native",
            "engine of the games; native, or official: textworld (extra alfworld), a thousand "
            "times slower",
        ),
    },
    anchor=ANCHOR,
    run_arguments=("max_steps", "regret", "anchor"),
    generate_options={
        "splits": Option(
            dict, None, "number of games of each split, such as {'train': 512, 'valid_unseen': 128}"
        ),
        "seed": Option(int, 0, "seed of the games"),
        "size": Option(str, "full", "size of the rooms: full or small"),
        "receptacles": Option(
            object,
            None,
            "number of receptacles in a room, or (least, most); by default as for size",
        ),
        "objects": Option(
            object, None, "number of objects in a room, or (least, most); by default as for size"
        ),
    },
    expert_options={
        "random_fraction": Option(
            float, 0.0, "probability of a random admissible command at a step"
        ),
        "detour_fraction": Option(
            float, 0.0, "probability of walking to another receptacle at a step"
        ),
        "idle_fraction": Option(float, 0.0, "probability of looking at something at a step"),
        "forget_fraction": Option(float, 0.0, "probability of an object being put down unprepared"),
    },
)
