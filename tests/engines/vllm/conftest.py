"""What the tests of rollouts from vLLM servers share."""

import pathlib
from collections.abc import Iterator
from dataclasses import replace

import jax
import pytest

from gigpo_jax.engines.vllm.worker import extension as vllm_extension
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from tests.engines.vllm import serving
from tests.engines.vllm.serving import TINY, Served


@pytest.fixture(scope="session")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Engines and runs, those in processes of their own included, take from a folder what one of
    them compiled.
    """
    folder: pathlib.Path = tmp_path_factory.mktemp("compiled")
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.2,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name.upper(), str(value))
            jax.config.update(name, value)
        yield
        for name, value in before.items():
            jax.config.update(name, value)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    """One with a tied head, one with an untied one, and a second tied one with long prompts.

    They start together, once for several files; the last tests of `test_real_faults.py` kill them.
    """
    folder = tmp_path_factory.mktemp("served")
    weights_dir = tmp_path_factory.mktemp("weights")
    words = load_tokenizer(TINY)
    config, params = load_hf(TINY)
    untied = replace(config, tie_word_embeddings=False)
    head = serving.shaken(params["embed"], 3)
    save_hf(folder / "untied", untied, params | {"head": head}, tokenizer=words)
    models = {
        "tied": (TINY, config, params, {}),
        "untied": (folder / "untied", untied, params | {"head": head}, {}),
        "spare": (TINY, config, params, {"max_length": serving.LONG}),
    }
    started = {}
    for name, (path, config, params, changes) in models.items():
        process = serving.start(path, folder / "logs", weights_dir, **changes)
        started[name] = Served(path, config, params, words, process, weights_dir)
    try:
        for served in started.values():
            serving.wait_up(served.process)
        yield started
    finally:
        for served in started.values():
            served.process.stop()


@pytest.fixture
def prompts() -> list[list[int]]:
    places = ("desk 1", "drawer 1", "shelf 2", "bed 1", "fridge 1", "table 3")
    texts = [f"you are in the middle of a room. you see a {place}." for place in places]
    return [load_tokenizer(TINY).encode_chat(text) for text in texts] * 2


@pytest.fixture
def allowed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The one folder that workers take weights from."""
    folder = tmp_path / "allowed"
    folder.mkdir()
    monkeypatch.setenv(vllm_extension.WEIGHTS_DIR, str(folder))
    return folder
