"""The modes of a run: python -m gigpo_jax.main --config=NAME|FILE [--mode=MODE] [--workdir=DIR] [--config.KEY=V]."""

import argparse
import importlib
import pathlib
import sys

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import joined, load_config, make_parser, origins
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.errors import InputError, StorageError, printable
from gigpo_jax.run.console import prepare
from gigpo_jax.run.interrupts import Interrupted
from gigpo_jax.run.workdir import check_run

MODES = {  # name -> module, what it does
    "train": ("train", "reinforcement learning, the default"),
    "eval": ("evaluate", "plays the evaluation set eval.panel with the newest weights of the workdir"),
    "sft": ("sft", "imitation of the environment's expert"),
    "serve": ("serve", "serves the newest weights of the workdir to agent programs, as OpenAI does (docs/serve.md)"),
    "export": ("export", "writes the newest weights of the workdir as a Hugging Face folder"),
    "preflight": ("preflight.run", "compiles the run for devices that are not here (--target), and says what it needs"),
}


def main(argv: list[str]) -> int:
    """Runs one mode; returns the exit status."""
    parser = make_parser({name: text for name, (_, text) in MODES.items()})
    try:
        args, words = parser.parse_known_args(joined(argv))
        asked = load_config(args.config, words)
        config = resolve(asked, trains=args.mode in ("train", "sft"))
        for flag, mode in (("push", "export"), ("target", "preflight")):
            if getattr(args, flag) and args.mode != mode:
                raise InputError(f"--{flag}={getattr(args, flag)}: of {mode} alone; leave it out")
        if args.print_config:
            print(printable("\n".join(origins(words, asked, config))))
            return 0
        program = importlib.import_module(f"gigpo_jax.{MODES[args.mode][0]}")
        if args.mode == "preflight":
            return program.run(config, args.target, args.out)
        workdir = pathlib.Path(args.workdir or f"runs/{pathlib.Path(args.config.partition(':')[0]).stem}")
        if args.mode in ("eval", "serve", "export"):
            check_run(workdir, initial=args.initial)
        if config.distributed:
            importlib.import_module("gigpo_jax.run.partition").connect_hosts()
        return program.run(config, workdir, args.out, *[args.push][: args.mode == "export"])
    except (InputError, StorageError, EnvError, Interrupted, argparse.ArgumentError) as error:
        print("gigpo_jax: " + printable(" ".join(str(error).split())), file=sys.stderr)
        return getattr(error, "status", 2)


if __name__ == "__main__":
    prepare()
    sys.exit(main(sys.argv[1:]))
