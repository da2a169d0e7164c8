"""The command gigpo-worlds.

`gigpo-worlds envs` is `python -m gigpo_jax.envs`, `gigpo-worlds openenv` is `python -m
gigpo_jax.envs.openenv.worlds`.
"""

import importlib
import os
import sys

import gigpo_worlds  # noqa: F401  makes gigpo_jax importable

COMMANDS = {"envs": "gigpo_jax.envs.__main__", "openenv": "gigpo_jax.envs.openenv.worlds"}


def main() -> int:
    """Passes the flags on; returns the exit status."""
    # As `python -m` does: module:NAME may be in the working directory.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in ("-h", "--help"):
        print(
            "usage: gigpo-worlds {envs,openenv} ...; each has its own --help (docs/interfaces.md)"
        )
        return 0
    if command not in COMMANDS:
        sys.stderr.write(
            f"gigpo-worlds: {command!r}: no such command; choose envs or openenv, with --help\n"
        )
        return 2
    try:
        module = importlib.import_module(COMMANDS[command])
    except ModuleNotFoundError as err:
        sys.stderr.write(f"gigpo-worlds {command}: {err}; pip install 'gigpo-worlds[{command}]'\n")
        return 2
    status: int = module.main(sys.argv[2:])
    return status


if __name__ == "__main__":
    sys.exit(main())
