"""Generated data is made once for all tests of this folder."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIGPO_JAX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
