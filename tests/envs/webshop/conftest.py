"""The reference catalogue, and a cache folder of the test run's own."""

import shutil
from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "data" / "webshop"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIGPO_JAX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of the reference catalogue."""
    return DATA


@pytest.fixture
def own_copy(tmp_path) -> Path:
    """A copy of the reference catalogue that a test may damage."""
    for path in DATA.glob("items_*.json"):
        shutil.copy(path, tmp_path)
    return tmp_path
