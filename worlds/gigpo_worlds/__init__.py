"""The environments of gigpo_jax without jax (docs/interfaces.md).

    import gigpo_worlds
    from gigpo_jax.envs.world import open_world

This distribution has the light part of gigpo_jax in the folder `sources`. Importing `gigpo_worlds`
makes it importable, unless gigpo_jax itself is installed; then that one is used. It also registers
gigpo/NAME-v0 with Gymnasium, if that is installed.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "sources"

if importlib.util.find_spec("gigpo_jax") is None:
    sys.path.append(str(SOURCES))
    importlib.invalidate_caches()
elif importlib.util.find_spec("gigpo_jax.envs") is None:
    # Only gigpo_credit is there: both folders are one package.
    importlib.import_module("gigpo_jax").__path__.append(str(SOURCES / "gigpo_jax"))
    importlib.invalidate_caches()

if importlib.util.find_spec("gymnasium") is not None:
    importlib.import_module("gigpo_jax.envs.gymnasium.worlds")  # registers gigpo/NAME-v0


def load_environment(**options: Any) -> Any:
    """The entry point of `verifiers.load_environment("gigpo-worlds", name="alfworld")`."""
    from gigpo_jax.envs.verifiers import worlds

    return worlds.load_environment(**options)
