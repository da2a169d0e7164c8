"""The command gigpo-worlds: `envs` is python -m gigpo_jax.envs, `openenv` is python -m gigpo_jax.interfaces.openenv."""

import importlib
import sys

import gigpo_worlds  # noqa: F401  makes gigpo_jax importable

COMMANDS = {"envs": "gigpo_jax.envs.__main__", "openenv": "gigpo_jax.interfaces.openenv"}


def main() -> int:
    """Passes the flags on; returns the exit status."""
    command, flags = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if command not in COMMANDS:
        sys.stderr.write(f"gigpo-worlds: {command!r}: no such command; choose envs or openenv, with --help\n")
        return 2
    status: int = importlib.import_module(COMMANDS[command]).main(flags)
    return status


if __name__ == "__main__":
    sys.exit(main())
