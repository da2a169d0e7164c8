"""What the tests of rollouts from vLLM servers share."""

import pathlib
from collections.abc import Iterator

import jax
import pytest

from gigpo_jax.engines.vllm.worker import extension as vllm_extension


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


@pytest.fixture
def allowed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The one folder that workers take weights from."""
    folder = tmp_path / "allowed"
    folder.mkdir()
    monkeypatch.setenv(vllm_extension.WEIGHTS_DIR, str(folder))
    return folder
