"""The help of `gigpo`, and its answer to a command that does not exist."""

import sys

from gigpo_jax import __version__
from gigpo_jax.core import packaged
from gigpo_jax.core.commands import MODES, TOOLS
from gigpo_jax.core.errors import escape_controls
from gigpo_jax.core.spelling import nearest_names

HELP = """usage: gigpo COMMAND [FLAGS]

commands (python -m gigpo_jax is the same program):
{commands}

  gigpo COMMAND --help    its flags, and the keys that matter
  gigpo keys PATTERN      all keys with PATTERN in their name or meaning
  gigpo --version         the version

{examples}

{pages}"""
EXAMPLES = """examples:
  gigpo train --config=quickstart --workdir=runs/quickstart
  gigpo inspect runs/quickstart
  gigpo eval --workdir=runs/quickstart
  gigpo train --config=alfworld:7b --config.model.path=DIR --config.train.groups=8"""


def answer_command(command: str) -> int:
    """Prints the help, the version, or an error; returns the exit status."""
    if command in ("-h", "--help", "help"):
        pages = describe_pages(packaged.ROOT)
        print(HELP.format(commands=describe_commands(), examples=EXAMPLES, pages=pages))
        return 0
    if command in ("-V", "--version"):
        print(f"gigpo_jax {__version__}")
        return 0
    commands = (*MODES, *TOOLS)
    near = ", ".join(nearest_names(command, commands) or commands)
    message = f"gigpo: {command!r}: no such command; nearest: {near}; see gigpo --help"
    # The command may hold control characters, which a terminal would obey.
    print(escape_controls(message), file=sys.stderr)
    return 2


def describe_commands() -> str:
    """A line for each command."""
    commands = {**MODES, **TOOLS}
    return "\n".join(f"  {name:<10}{command.help}" for name, command in commands.items())


def describe_pages(folder: object) -> str:
    """Lists the documentation's pages in a folder with `docs`."""
    return (
        f"pages in {folder}/docs: guide.md (modes), troubleshooting.md (faults),\n"
        "environments.md and own_algorithm.md (your own)"
    )
