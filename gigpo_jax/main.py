"""The modes of a run: gigpo train|eval|... --config=NAME [--config.KEY=VALUE].

`python -m gigpo_jax.main --config=NAME [--mode=MODE]` works too.
"""

from gigpo_jax.core.early_interrupts import end_at_interrupts, ends_at_interrupts

if __name__ == "__main__":
    end_at_interrupts()  # the imports below take seconds

import argparse
import importlib
import os
import pathlib
import sys

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import join_flags, load_config
from gigpo_jax.config.flags import find_mode, make_parser
from gigpo_jax.core.commands import MODES
from gigpo_jax.core.early_interrupts import STATUSES, end_at_second_interrupt, leave
from gigpo_jax.core.errors import InputError, StorageError, escape_controls
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.run.console import check_open_files, prepare_console
from gigpo_jax.run.interrupts import Interrupted, raise_interrupted
from gigpo_jax.run.progress import show_stage

RUN_MODES = ("eval", "serve", "export")  # of a finished run, whose workdir has its config


def main(argv: list[str]) -> int:
    """Runs one mode; returns the exit status."""
    is_command = ends_at_interrupts()
    status = _run_safely(argv)
    # Several hosts leave together, at the exit of Python.
    if is_command and status in STATUSES and "JAX_PROCESS_ID" not in os.environ:
        leave(status)
    return status


def _run_safely(argv: list[str]) -> int:
    try:
        return _run(argv)
    except (InputError, StorageError, EnvError, Interrupted, argparse.ArgumentError) as error:
        # One line, whatever text of a server or a file is in the error.
        message = " ".join(str(error).split())
        print(f"gigpo_jax: {escape_controls(message)}", file=sys.stderr)
        return getattr(error, "status", 2)


def _run(argv: list[str]) -> int:
    check_open_files()
    joined = join_flags(argv)
    patterns = [word.removeprefix("--help=") for word in joined if word.startswith("--help=")]
    if patterns:
        return importlib.import_module("gigpo_jax.tools.keys.command").main(patterns)
    mode = find_mode(joined)
    epilog = ""
    if not {"-h", "--help"}.isdisjoint(joined):
        # By name: a run has no help to show.
        epilog = importlib.import_module("gigpo_jax.config.help_text").describe_mode(mode)
    flags, words = make_parser(mode, epilog).parse_known_args(joined)
    file = flags.config
    if not file and flags.mode in RUN_MODES:
        saved_runs = importlib.import_module("gigpo_jax.run.saved_runs")
        file = saved_runs.find_saved_config(flags.workdir)
    loaded = load_config(file, words)
    # The checks of the config come before devices are taken and before anything is written.
    config = resolve(loaded, trains=flags.mode in ("train", "sft"))
    flag_owners = (("push", "export"), ("target", "preflight"), ("server", "preflight"))
    for flag, owner in flag_owners:
        value = getattr(flags, flag)
        if value and flags.mode != owner:
            raise InputError(
                f"belongs to --mode={owner}", key=f"--{flag}", value=value, fix="leave it out"
            )
    if flags.print_config:
        origins = importlib.import_module("gigpo_jax.config.origins")
        print(escape_controls("\n".join(origins.describe_origins(words, loaded, config))))
        return 0
    with show_stage("starting"):
        # By name: a mode imports what it needs, and --print_config needs none of it.
        program = importlib.import_module(f"gigpo_jax.{MODES[flags.mode].module}")
    # Only in the command: a program that calls `main` keeps its own handlers.
    if ends_at_interrupts():
        raise_interrupted()
        end_at_second_interrupt()
    # Before the backend starts: it plans for devices that need not be here.
    if flags.mode == "preflight":
        return program.run(config, flags.target, flags.out, server=flags.server)
    name = pathlib.Path(flags.config.partition(":")[0]).stem
    workdir = pathlib.Path(flags.workdir or f"runs/{name}")
    if flags.mode in RUN_MODES:
        resumed = importlib.import_module("gigpo_jax.run.resumed")
        resumed.check_run(workdir, config, initial=flags.initial)
    if config.distributed:
        if flags.mode in ("serve", "engine"):
            reason = "each host serves by itself"
            raise InputError(reason, key="config.distributed", value="True", fix="leave it out")
        # Before any other use of jax, which would start with this host's devices alone.
        importlib.import_module("gigpo_jax.run.connect").connect_hosts()
    importlib.import_module("gigpo_jax.devices.backend").start_backend(config)
    if flags.mode == "export":
        return program.run(config, workdir, flags.out, flags.push)
    return program.run(config, workdir, flags.out)


if __name__ == "__main__":
    prepare_console()
    sys.exit(main(sys.argv[1:]))
