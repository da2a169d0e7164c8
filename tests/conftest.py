"""Options that several test folders share."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs import flags
from tests.small_disk import small_disk

__all__ = ["flags", "small_disk"]

# A process may have 65,530 memory maps (vm.max_map_count), and a compiled program takes about 14.
# Beyond the limit the compiler crashes with a segmentation fault.
MEMORY_MAPS = Path("/proc/self/maps")
MAPS_TO_KEEP = 20_000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="seed of the long differential tests")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--seed")


@pytest.fixture(scope="module", autouse=True)
def drop_compiled_programs() -> Iterator[None]:
    """Frees the compiled programs after a file if they have become too many for one process."""
    yield
    if "jax" not in sys.modules or not MEMORY_MAPS.exists():
        return
    if MEMORY_MAPS.read_bytes().count(b"\n") > MAPS_TO_KEEP:
        sys.modules["jax"].clear_caches()
        gc.collect()
