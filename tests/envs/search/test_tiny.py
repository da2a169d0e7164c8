"""The experiment for a laptop: its configs, and a warm start that can spell the test questions."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from gigpo_jax.config import resolve
from gigpo_jax.env_bridge.panels import read_panel
from gigpo_jax.envs.panels import panel_folder
from gigpo_jax.envs.search.data.world import make_world
from gigpo_jax.envs.search.prompt import shorten_text
from gigpo_jax.models.text.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[3]


def get_config(name: str, *variant: str) -> Any:
    return runpy.run_path(str(ROOT / "configs" / f"{name}.py"))["get_config"](*variant)


def test_the_configs_are_valid_and_of_one_world() -> None:
    configs = [
        get_config("search_tiny"),
        get_config("search_tiny_sft", "1"),
        get_config("search_tiny_sft", "2"),
    ]
    for config in configs:
        resolve(config)
        assert config.env.generate == configs[0].env.generate
    made_from = read_panel(panel_folder("search") / f"{configs[0].eval.panel}.json").made_from
    assert configs[0].env.generate.to_dict() == made_from
    with pytest.raises(ValueError, match="no such stage; choose 1 or 2"):
        get_config("search_tiny_sft", "3")


def test_the_warm_start_is_small_and_knows_every_word_of_the_world() -> None:
    folder = ROOT / "models" / "search_tiny"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 8 << 20
    tokenizer = load_tokenizer(folder)
    world = make_world(**get_config("search_tiny").env.generate)
    unknown = tokenizer.token_id("<unk>")
    texts = [text for question in world.questions for text in (question.text, *question.golden)]
    texts += [shorten_text(document.contents) for document in world.documents]
    words = sorted(set(" ".join(texts).lower().replace("?", " ? ").split()))
    assert len(words) > 400
    assert unknown not in tokenizer.encode(" ".join(words))
