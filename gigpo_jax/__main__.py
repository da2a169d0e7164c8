"""The command gigpo, the same as python -m gigpo_jax.

Its first argument is a command of `core.commands`; `gigpo --help` lists them.
"""

import importlib
import os
import sys

from gigpo_jax.core.commands import MODES, TOOLS
from gigpo_jax.core.early_interrupts import end_at_interrupts


def main() -> int:
    """Passes the flags on; returns the exit status."""
    # First: the imports below take seconds, in which Ctrl-C should end the command with one line.
    end_at_interrupts()
    # As `python -m` does, for module:NAME in the working directory.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    flags = sys.argv[2:]
    if command in TOOLS:
        return _run_tool(command, flags)
    if command in MODES:
        # By name, and only here: help and misspelt commands answer without importing jax.
        importlib.import_module("gigpo_jax.run.console").prepare_console()
        return importlib.import_module("gigpo_jax.main").main([f"--mode={command}", *flags])
    # A command that runs needs neither help nor the names of others.
    return int(importlib.import_module("gigpo_jax.core.command_help").answer_command(command))


def _run_tool(command: str, flags: list[str]) -> int:
    tool = importlib.import_module(f"gigpo_jax.{TOOLS[command].module}")
    # Imported here: `gigpo --help` and mistakes do not need them.
    console = importlib.import_module("gigpo_jax.run.console")
    interrupts = importlib.import_module("gigpo_jax.run.interrupts")
    console.prepare_console()
    interrupts.raise_interrupted()
    try:
        return int(tool.main(flags))
    except interrupts.Interrupted as stopped:
        print(f"gigpo_jax: {stopped}", file=sys.stderr)
        return int(stopped.status)


if __name__ == "__main__":
    sys.exit(main())
