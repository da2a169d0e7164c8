"""The command line: python -m gigpo_jax.main --config=FILE [--workdir=DIR] [--mode=train|eval|sft|export]."""

import importlib
import pathlib
import sys
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import config_flags

from gigpo_jax.config import validate
from gigpo_jax.config_file import misspelt
from gigpo_jax.errors import InputError

CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment: a file under configs/.", lock_config=True)
WORKDIR = flags.DEFINE_string("workdir", "", "Where logs, checkpoints and rollouts go; default: runs/<config's name>.")
MODES = {"train": "train", "eval": "evaluate", "sft": "sft", "export": "export"}
MODE = flags.DEFINE_enum("mode", "train", list(MODES), "What to do.")
OUT = flags.DEFINE_string("out", "", "For eval and export: where the result goes; default: in the workdir.")


def parse_flags(argv: list[str]) -> list[str]:
    """Parses the command line; a bad flag or config key is one line and exit status 2."""
    try:
        rest = flags.FLAGS(argv)
        if CONFIG.value is None or not CONFIG.value.keys():  # a config file that failed to load raises here
            raise InputError("--config: missing; for example --config=configs/quickstart.py")
        if len(rest) > 1:
            raise InputError(f"{rest[1]!r}: not a flag; write --config.KEY=VALUE")
        return rest
    except Exception as error:  # a config file is a program; whatever it raises is a bad config
        fail((misspelt(argv) if isinstance(error, KeyError | AttributeError) else None) or error)


def fail(error: Exception) -> NoReturn:
    """Prints an error as one line and exits with status 2."""
    text = str(error)
    if "Traceback" in text:  # of a config file: its last line says what is wrong
        text = text.strip().splitlines()[-1]
    print("gigpo_jax: " + " ".join(text.split()), file=sys.stderr)
    sys.exit(2)


def main(_: list[str]) -> None:
    """Runs one mode."""
    logging.set_verbosity(logging.WARNING)
    name = pathlib.Path(config_flags.get_config_filename(flags.FLAGS["config"])).stem
    workdir = pathlib.Path(WORKDIR.value or f"runs/{name}")
    try:
        validate(CONFIG.value)
        mode = importlib.import_module(f"gigpo_jax.{MODES[MODE.value]}")  # jax starts here, the config being good
        if CONFIG.value.distributed:
            importlib.import_module("gigpo_jax.run.partition").connect_hosts()
        sys.exit(mode.run(CONFIG.value, workdir, OUT.value))
    except InputError as error:
        fail(error)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
