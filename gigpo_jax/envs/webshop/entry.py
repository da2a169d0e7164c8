"""The entry of WebShop."""

from functools import partial

from gigpo_jax.core.settings import one_of
from gigpo_jax.env_bridge.actions import parse_tagged
from gigpo_jax.envs.entry_types import Environment, ExampleGames, Option
from gigpo_jax.envs.webshop.prompt import FULL, TAGGED, write_compact_prompt

ENVIRONMENT = Environment(
    build="gigpo_jax.envs.webshop.env:make",
    styles={
        "full": FULL,
        "tagged": TAGGED,
        "compact": write_compact_prompt,
    },
    parse=partial(parse_tagged, fallback_chars=20),
    expert="gigpo_jax.envs.webshop.expert.demonstrator:Demonstrator",
    generate="gigpo_jax.envs.webshop.data.generate:ensure_catalogue",
    examples=ExampleGames({"products": 200, "seed": 1}, {"brief": True}),
    max_steps=15,
    history=2,
    invalid_penalty=0.1,
    options={
        "data": Option(
            str, None, "folder of a catalogue (docs/webshop.md); by default a generated one"
        ),
        "observation": Option(
            str,
            "text",
            "style of observations: text, or text_rich with marks around buttons and chosen "
            "options",
        ),
        "goals": Option(str, "synthetic", "kind of instructions: synthetic or human"),
        # draw_seed and nouns are for rewards that equal those of the original server.
        "draw_seed": Option(
            int, None, "seed of the original's prices and caps; with it every goal is used"
        ),
        "nouns": Option(
            str,
            None,
            "source of the nouns of titles, for the reward: builtin (default), spacy, or a JSON "
            "file",
        ),
        "variant": Option(str, None, "name of one of several catalogues in data, such as _1000"),
    },
    anchor=one_of("page", "page+options", "state"),
    run_arguments=("max_steps", "regret", "anchor"),
    generate_options={
        "products": Option(int, 1000, "number of products in the catalogue"),
        "seed": Option(int, 0, "seed of the products"),
    },
    expert_options={
        "max_steps": Option(int, 15, "steps the expert plans for"),
        "random_fraction": Option(float, 0.0, "probability of a random click at a step"),
        "vague_fraction": Option(
            float, 0.0, "probability of a search with three of the expert's words"
        ),
        "forget_fraction": Option(float, 0.0, "probability of an option that is never chosen"),
        "brief": Option(bool, False, "whether searches name every word only once"),
    },
)
