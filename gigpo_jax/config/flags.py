"""The flags of the commands with a config, and their --help."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gigpo_jax.config.keys import KEYS
from gigpo_jax.core import packaged
from gigpo_jax.core.commands import EXAMPLES, MODES, describe_commands, describe_pages

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
_TRAINING = ("train.iterations", "train.groups", "train.group_size", "train.minibatch", "optim.lr")
MAIN_KEYS = {  # the ten that matter in a mode, or fewer
    "train": ("model.path", "env.name", "rl.algorithm", *_TRAINING, "eval.panel", "seed"),
    "eval": (
        "model.path",
        "env.name",
        "eval.panel",
        "eval.tasks",
        "eval.temperature",
        "eval.trials",
        "agent",
        "sampling.max_response_tokens",
        "engine.name",
        "seed",
    ),
    "sft": (
        "model.path",
        "env.name",
        "sft.episodes",
        "sft.epochs",
        "sft.minibatch",
        "optim.lr",
        "model.shape.hidden_size",
        "model.shape.num_layers",
        "sampling.max_prompt_tokens",
        "seed",
    ),
    "serve": (
        "model.path",
        "serve.host",
        "serve.port",
        "engine.request_timeout_s",
        "serve.clamp",
        "sampling.temperature",
        "sampling.max_prompt_tokens",
        "sampling.max_response_tokens",
        "engine.slots",
        "engine.name",
    ),
    "engine": (
        "model.path",
        "serve.host",
        "serve.port",
        "sampling.max_prompt_tokens",
        "sampling.max_response_tokens",
        "engine.slots",
        "engine.dtype",
        "engine.tensor",
        "engine.weights_dir",
        "engine.prefill_chunk",
    ),
    "export": ("model.path", "model.revision", "model.lora.rank", "engine.dtype"),
    "preflight": (
        "model.path",
        "mesh.data",
        "mesh.fsdp",
        "mesh.tensor",
        "batch.rows",
        "batch.row_length",
        "engine.slots",
        "model.remat",
        "sampling.max_prompt_tokens",
        "sampling.max_response_tokens",
    ),
}


def make_parser(mode: str = "") -> argparse.ArgumentParser:
    """Builds the parser of a run's flags, without config keys.

    Args:
      mode: Mode whose help is shown; "": the help of all commands.
    """
    parser = argparse.ArgumentParser(
        usage=f"gigpo {mode or 'COMMAND'} --config=NAME|FILE [FLAGS] [--config.KEY=VALUE ...]",
        description=MODES[mode].help if mode else None,
        epilog=_help_text(mode),
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


def _help_text(mode: str) -> str:
    """The text of --help below the flags."""
    pages = describe_pages(packaged.ROOT)
    more = "all keys: gigpo keys; some of them: gigpo keys PATTERN, or --help=PATTERN"
    if not mode:
        commands = f"commands:\n{describe_commands()}\n  gigpo COMMAND --help has their flags"
        return f"{commands}\n\n{EXAMPLES}\n\n{more}\n{pages}"
    keys = "\n".join(describe_keys(MAIN_KEYS[mode]))
    return f"keys that matter, with their defaults (--config.KEY=VALUE):\n{keys}\n{more}\n{pages}"


def describe_keys(names: Iterable[str] = KEYS) -> Iterator[str]:
    """A line for each key: name, default, meaning."""
    for name in names:
        key = KEYS[name]
        yield f"  {f'{name}={key.default}':<44} {key.help}"
