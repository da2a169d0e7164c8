"""The command gigpo, which is python -m gigpo_jax: COMMAND FLAGS. A COMMAND is a mode of main.py or one of `TOOLS`."""

import importlib
import os
import sys

from gigpo_jax.errors import nearest, printable

TOOLS = ("compare", "credit", "envs", "inspect")  # each as python -m gigpo_jax.TOOL
MODES = ("train", "eval", "sft", "serve", "export", "preflight")


def main() -> int:
    """Passes the flags on; returns the exit status."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does, for module:NAME in the working directory
    command, flags = (sys.argv[1:2] or ["--help"])[0], sys.argv[2:]
    if command in TOOLS:
        return importlib.import_module(f"gigpo_jax.{command}.__main__").main(flags)
    if command in MODES:
        importlib.import_module("gigpo_jax.run.console").prepare()
        return importlib.import_module("gigpo_jax.main").main([f"--mode={command}", *flags])
    if command in ("-h", "--help"):
        return importlib.import_module("gigpo_jax.main").main([command])
    commands = (*MODES, *TOOLS)
    fix = ", ".join(nearest(command, commands) or commands)
    print(printable(f"gigpo: {command!r}: no such command; nearest: {fix}; see gigpo --help"), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
