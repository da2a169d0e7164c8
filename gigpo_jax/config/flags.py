"""The flags of the commands with a config."""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from gigpo_jax.core.commands import MODES

MODE = "--mode"


class Flag(NamedTuple):
    """A flag.

    Attributes:
      metavar: Value in the help; "" for a switch.
      help: Meaning.
      modes: Modes whose help has the flag; empty: all.
    """

    metavar: str
    help: str
    modes: tuple[str, ...] = ()


FLAGS = {
    "--config": Flag(
        "NAME|FILE",
        "experiment: a packaged config or a file, with :VARIANT; eval, export and serve: default "
        "WORKDIR/config.json",
    ),
    "--workdir": Flag("DIR", "folder of the run; default: runs/<name of the config>"),
    "--out": Flag(
        "PATH", "path that the command writes", ("eval", "sft", "serve", "export", "preflight")
    ),
    "--push": Flag("ORG/NAME", "model of the Hub to which export writes too", ("export",)),
    "--target": Flag("NAME", "devices that are compiled for: v5e-8, h100x8, ...", ("preflight",)),
    "--server": Flag("", "compile what gigpo engine runs, and nothing of training", ("preflight",)),
    "--initial": Flag("", "use model.path; the workdir holds no run", ("eval", "serve", "export")),
    "--print_config": Flag("", "print every key's value and its origin, and exit"),
}


def make_parser(mode: str = "", epilog: str = "") -> argparse.ArgumentParser:
    """Builds the parser of a run's flags, without config keys.

    Args:
      mode: Mode whose help is shown; "": the help of all commands.
      epilog: Text of --help below the flags.
    """
    parser = argparse.ArgumentParser(
        usage=f"gigpo {mode or 'COMMAND'} --config=NAME|FILE [FLAGS] [--config.KEY=VALUE ...]",
        description=MODES[mode].help if mode else None,
        epilog=epilog,
        # Abbreviations would change their meaning with every new flag.
        allow_abbrev=False,
        # Errors come out as exceptions: `main` prints all of them in one form.
        exit_on_error=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        MODE,
        metavar="MODE",
        choices=list(MODES),
        default="train",
        help=argparse.SUPPRESS if mode else "one of the first seven commands below, in its place",
    )
    for name, flag in FLAGS.items():
        is_shown = not mode or not flag.modes or mode in flag.modes
        # Hidden and still parsed: `main` says which mode such a flag belongs to.
        text = flag.help if is_shown else argparse.SUPPRESS
        if flag.metavar:
            parser.add_argument(name, default="", metavar=flag.metavar, help=text)
        else:
            parser.add_argument(name, action="store_true", help=text)
    return parser


def find_mode(words: Sequence[str]) -> str:
    """Returns the mode that a command line names, or "" for none or an unknown one."""
    modes = [word.removeprefix(f"{MODE}=") for word in words if word.startswith(f"{MODE}=")]
    # The last one wins, as in argparse, which then refuses an unknown one.
    return modes[-1] if modes and modes[-1] in MODES else ""
