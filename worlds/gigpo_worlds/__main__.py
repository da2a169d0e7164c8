"""The command gigpo-worlds: `envs` is python -m gigpo_jax.envs, `openenv` is python -m gigpo_jax.interfaces.openenv."""

import importlib
import os
import sys

import gigpo_worlds  # noqa: F401  makes gigpo_jax importable

COMMANDS = {"envs": "gigpo_jax.envs.__main__", "openenv": "gigpo_jax.interfaces.openenv"}


def main() -> int:
    """Passes the flags on; returns the exit status."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does, for module:NAME in the working directory
    command, flags = (sys.argv[1:2] or ["--help"])[0], sys.argv[2:]
    if command in ("-h", "--help"):
        print("usage: gigpo-worlds {envs,openenv} ...; each has its own --help (docs/interfaces.md)")
        return 0
    if command not in COMMANDS:
        sys.stderr.write(f"gigpo-worlds: {command!r}: no such command; choose envs or openenv, with --help\n")
        return 2
    try:
        module = importlib.import_module(COMMANDS[command])
    except ModuleNotFoundError as err:
        sys.stderr.write(f"gigpo-worlds {command}: {err}; pip install 'gigpo-worlds[{command}]'\n")
        return 2
    status: int = module.main(flags)
    return status


if __name__ == "__main__":
    sys.exit(main())
