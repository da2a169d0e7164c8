"""The command gigpo-worlds: `gigpo-worlds envs` is `gigpo envs`."""

import os
import sys

import gigpo_worlds  # noqa: F401  makes gigpo_jax importable
from gigpo_jax.envs import command_line


def main() -> int:
    """Passes the flags on; returns the exit status."""
    # As `python -m` does: module:NAME may be in the working directory.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in ("-h", "--help"):
        print("usage: gigpo-worlds envs ..., with its own --help (docs/interfaces.md)")
        return 0
    if command != "envs":
        sys.stderr.write(f"gigpo-worlds: {command!r}: no such command; use envs, with --help\n")
        return 2
    return command_line.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
