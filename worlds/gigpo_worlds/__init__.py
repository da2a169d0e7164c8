"""The environments of gigpo_jax without jax (docs/interfaces.md).

import gigpo_worlds
from gigpo_jax.interfaces.world import open_world

This distribution has the light part of gigpo_jax in a folder of its own, `sources`. Importing `gigpo_worlds` makes it
importable where gigpo_jax itself is not installed; where it is, that one is used.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "sources"

if importlib.util.find_spec("gigpo_jax") is None:
    sys.path.append(str(SOURCES))
    importlib.invalidate_caches()


def load_environment(**options: Any) -> Any:
    """The entry point of verifiers: `verifiers.load_environment("gigpo-worlds", name="alfworld")`."""
    from gigpo_jax.interfaces import verifiers

    return verifiers.load_environment(**options)
