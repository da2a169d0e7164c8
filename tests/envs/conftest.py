"""A cache of generated data, made once for all tests of the worlds."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def world_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIGPO_JAX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
