"""The entry of search-augmented question answering."""

from gigpo_jax.core.settings import one_of
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.envs.entry_types import Environment, ExampleGames, Option
from gigpo_jax.envs.search.actions import parse_response, write_response
from gigpo_jax.envs.search.prompt import (
    ACTIONS,
    CHAT,
    INTRO,
    write_compact_prompt,
    write_full_prompt,
)

ENVIRONMENT = Environment(
    build="gigpo_jax.envs.search.env:make",
    styles={
        "full": write_full_prompt,
        "chat": CHAT,
        "compact": write_compact_prompt,
    },
    parse=parse_response,
    expert="gigpo_jax.envs.search.expert.expert:SearchExpert",
    generate="gigpo_jax.envs.search.data.generate:ensure_world",
    examples=ExampleGames({"people": 48, "seed": 1}),
    about=Instruct(f"{INTRO} {ACTIONS}"),
    write=write_response,
    action_tags=("search", "answer"),
    answer_prefix="<think>Now there is enough information to answer.</think><answer>",
    max_steps=4,
    history=4,
    invalid_penalty=0.01,
    options={
        "data": Option(
            str, None, "folder of questions (docs/search.md); by default a synthetic world"
        ),
        "url": Option(
            str,
            "",
            "URL of a retriever, such as http://127.0.0.1:8000/retrieve; by default the folder "
            "index in data",
        ),
        # For retrievers over networks, or of large corpora.
        "limit_s": Option(
            float,
            45.0,
            "time limit for a search with all its retries; keep it below env.step_timeout_s",
        ),
        "topk": Option(int, 3, "number of passages shown after a search"),
    },
    anchor=one_of("information", "information+past", "state"),
    run_arguments=("max_steps", "regret", "anchor"),
    generate_options={
        "people": Option(int, 480, "number of people in the synthetic world"),
        "seed": Option(int, 0, "seed of the world"),
    },
    expert_options={
        "blind_fraction": Option(float, 0.0, "probability of an answer without a search"),
        "vague_fraction": Option(
            float, 0.0, "probability of a search that names half of its subject"
        ),
        "hasty_fraction": Option(
            float, 0.0, "probability of answering with any name instead of searching on"
        ),
    },
)
