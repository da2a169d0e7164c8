"""The modes of a run: python -m gigpo_jax.main --config=NAME|FILE [--mode=MODE] [--workdir=DIR] [--config.KEY=V]."""

import argparse
import importlib
import pathlib
import sys

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import help_text, joined, load_config, origins
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.errors import InputError, StorageError, printable
from gigpo_jax.run.console import prepare
from gigpo_jax.run.interrupts import Interrupted
from gigpo_jax.run.workdir import check_run

MODES = {  # name -> module, what it does
    "train": ("train", "reinforcement learning, the default"),
    "eval": ("evaluate", "plays the evaluation set eval.panel with the newest weights of the workdir"),
    "sft": ("sft", "imitation of the environment's expert"),
    "export": ("export", "writes the newest weights of the workdir as a Hugging Face folder"),
    "preflight": ("preflight.run", "compiles the run for devices that are not here (--target), and says what it needs"),
}
USAGE = "gigpo train|eval|sft|export|preflight --config=NAME|FILE[:VARIANT] [--workdir=DIR] [--config.KEY=VALUE ...]"


def main(argv: list[str]) -> int:
    """Runs one mode; returns the exit status."""
    parser = argparse.ArgumentParser(
        usage=USAGE, allow_abbrev=False, exit_on_error=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.epilog = help_text({name: text for name, (_, text) in MODES.items()})
    parser.add_argument("--config", default="", metavar="NAME|FILE", help="the experiment: a packaged config or a file")
    parser.add_argument("--mode", choices=list(MODES), default="train", help="in place of a command, see below")
    parser.add_argument("--workdir", default="", metavar="DIR", help="of the run; default: runs/<name of the config>")
    parser.add_argument("--out", default="", metavar="PATH", help="of the result of eval, sft, export or preflight")
    parser.add_argument("--target", default="", metavar="NAME", help="of preflight: v5e-8, h100x8, ...")
    parser.add_argument("--initial", action="store_true", help="eval or export model.path; the workdir holds no run")
    parser.add_argument("--print_config", action="store_true", help="print every key's value and its origin, and exit")
    try:
        args, words = parser.parse_known_args(joined(argv))
        asked = load_config(args.config, words)
        config = resolve(asked, trains=args.mode in ("train", "sft"))
        if args.print_config:
            print(printable("\n".join(origins(words, asked, config))))
            return 0
        mode = importlib.import_module(f"gigpo_jax.{MODES[args.mode][0]}")
        if args.mode == "preflight":
            return mode.run(config, args.target, args.out)
        workdir = pathlib.Path(args.workdir or f"runs/{pathlib.Path(args.config.partition(':')[0]).stem}")
        if args.mode in ("eval", "export"):
            check_run(workdir, initial=args.initial)
        if config.distributed:
            importlib.import_module("gigpo_jax.run.partition").connect_hosts()
        return mode.run(config, workdir, args.out)
    except (InputError, StorageError, EnvError, Interrupted, argparse.ArgumentError) as error:
        print("gigpo_jax: " + printable(" ".join(str(error).split())), file=sys.stderr)
        return getattr(error, "status", 2)


if __name__ == "__main__":
    prepare()
    sys.exit(main(sys.argv[1:]))
