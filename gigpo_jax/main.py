"""The command line: python -m gigpo_jax.main --config=FILE [--mode=MODE] [--workdir=DIR] [--config.KEY=VALUE ...]."""

import argparse
import importlib
import pathlib
import sys

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import joined, key_help, load_config
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.errors import InputError, StorageError, printable
from gigpo_jax.run.console import prepare
from gigpo_jax.run.interrupts import Interrupted

MODES = {  # name -> module, what it does
    "train": ("train", "reinforcement learning, the default"),
    "eval": ("evaluate", "plays the evaluation set eval.panel with the newest weights of the workdir"),
    "sft": ("sft", "imitation of the environment's expert"),
    "export": ("export", "writes the newest weights of the workdir as a Hugging Face folder"),
}
HELP = f"""
modes:
{chr(10).join(f"  {name:<8}{text}" for name, (_, text) in MODES.items())}

examples:
  python -m gigpo_jax.main --config=configs/quickstart.py --workdir=runs/quickstart
  python -m gigpo_jax.main --config=configs/alfworld.py:7b --config.model.path=DIR --config.train.groups=8
  python -m gigpo_jax.main --config=configs/quickstart.py --workdir=runs/quickstart --mode=eval

keys, with their defaults (docs/configuration.md: allowed values, options of the environments):
"""


def main(argv: list[str]) -> int:
    """Runs one mode; returns the exit status."""
    usage = __doc__.removeprefix("The command line: ").removesuffix(".")
    parser = argparse.ArgumentParser(
        usage=usage, allow_abbrev=False, exit_on_error=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.epilog = HELP + "\n".join(key_help())
    parser.add_argument("--config", default="", metavar="FILE[:VARIANT]", help="the experiment, see configs/")
    parser.add_argument("--mode", choices=list(MODES), default="train", metavar="|".join(MODES))
    parser.add_argument("--workdir", default="", metavar="DIR", help="of the run; default: runs/<name of the config>")
    parser.add_argument("--out", default="", metavar="PATH", help="of the result of eval, sft or export")
    try:
        args, words = parser.parse_known_args(joined(argv))
        config = resolve(load_config(args.config, words), trains=args.mode in ("train", "sft"))
        mode = importlib.import_module(f"gigpo_jax.{MODES[args.mode][0]}")
        if config.distributed:
            importlib.import_module("gigpo_jax.run.partition").connect_hosts()
        workdir = pathlib.Path(args.workdir or f"runs/{pathlib.Path(args.config.partition(':')[0]).stem}")
        return mode.run(config, workdir, args.out)
    except (InputError, StorageError, EnvError, Interrupted, argparse.ArgumentError) as error:
        print("gigpo_jax: " + printable(" ".join(str(error).split())), file=sys.stderr)
        return getattr(error, "status", 2)


if __name__ == "__main__":
    prepare()
    sys.exit(main(sys.argv[1:]))
