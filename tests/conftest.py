"""Options that several test folders share."""

import gc
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.costs import Costs
from tests.runs import flags
from tests.small_disk import small_disk

__all__ = ["flags", "small_disk"]

# A process may have 65,530 memory maps (vm.max_map_count), and a compiled program takes about 14.
# Beyond the limit the compiler crashes with a segmentation fault.
MEMORY_MAPS = Path("/proc/self/maps")
MAPS_TO_KEEP = 20_000
SHARED = "GIGPO_TESTS_FOLDER"
# Other tests are of single methods, environments, servers and tools.
CORE = tuple(
    f"tests/{name}"
    for name in [
        "test_",
        "core/",
        "config/",
        "devices/",
        "engines/jax/",
        "engines/test_",
        "env_bridge/",
        "learner/",
        "models/",
        "modes/",
        "rl/",
        "rollout/",
        "run/",
    ]
)

# jax reads these when it is imported, also in the processes that tests start. Most programs of
# tests run for less time than the compiler would need to optimise them; the fusion emitters take
# three quarters of the time that is left.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Threads of torch spin while they wait for each other: with more workers than cores, two take 2.5
# times the CPU seconds of one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Python looks for garbage after 700 new objects. Imports and syntax trees have many, and no garbage.
gc.set_threshold(50_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="seed of the long differential tests")
    parser.addoption("--costs", metavar="FILE", help="CPU seconds of tests and phases")
    parser.addoption("--part", help="all tests with this in their name, and quick ones of the core")


def pytest_configure(config: pytest.Config) -> None:
    # The first process makes a folder for all workers and the processes that tests start.
    if SHARED not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="gigpo-tests-", ignore_cleanup_errors=True)
        os.environ[SHARED] = folder.name
        config.add_cleanup(folder.cleanup)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{os.environ[SHARED]}/programs")
    # The environments of `make test-interfaces` and `make test-trainers` have no hypothesis.
    if importlib.util.find_spec("hypothesis"):
        bound_examples()
    if config.getoption("--costs"):
        config.pluginmanager.register(Costs(config))


def bound_examples() -> None:
    """Shows a failing example as it is found: to make its input smaller took minutes.

    `--hypothesis-profile=default` makes it smaller.
    """
    from hypothesis import Phase, settings

    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    settings.register_profile("suite", deadline=None, phases=phases)
    settings.load_profile("suite")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Selects the tests of `--part`."""
    part = config.getoption("--part")
    if not part:
        return
    # At the beginning of a word: "rl" is not in "alfworld".
    word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(part)}")
    named = {item for item in items if word.search(item.nodeid)}
    if not named:
        raise pytest.UsageError(f"--part={part}: no test has this in its name")

    def is_selected(item: pytest.Item) -> bool:
        is_core = item.nodeid.startswith(CORE) and not item.get_closest_marker("slow")
        return item in named or is_core

    config.hook.pytest_deselected(items=[item for item in items if not is_selected(item)])
    items[:] = filter(is_selected, items)


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """A folder for what all workers use; it is removed with the last of them."""
    return Path(os.environ[SHARED])


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
