"""The command gigpo credit --config=FILE [--workdir=DIR] [--config.KEY=VALUE ...]."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from absl import logging
from ml_collections import ConfigDict

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import join_flags, load_config
from gigpo_jax.config.mix import member_configs
from gigpo_jax.core.errors import InputError, StorageError, escape_controls
from gigpo_jax.core.files import check_writable
from gigpo_jax.devices.backend import start_backend
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.tools.credit.estimates import parse_variants
from gigpo_jax.tools.credit.pool import pool_measurements
from gigpo_jax.tools.credit.report import write_report
from gigpo_jax.tools.credit.run import MeasurementChoice, run

EXAMPLE = """example:
  gigpo credit --config=quickstart --anchors=feedback,feedback+inventory+sticky

Other flags, such as --config.rl.gamma=1, change the config.
The same command continues a stopped measurement."""


def main(argv: Sequence[str]) -> int:
    """Measures and grades; returns the exit status."""
    logging.set_verbosity(logging.WARNING)
    try:
        # Unknown words are flags of the config, which `join_flags` checks.
        args, words = _make_parser().parse_known_args(argv)
        # A pool needs no config, model or device.
        if args.pool:
            return _run_pool(args.pool, Path(args.workdir or "runs/pool"))
        config = _select_environment(
            resolve(load_config(args.config, join_flags(words))), args.environment
        )
        choice = MeasurementChoice(
            steps=args.steps,
            continuations=args.continuations,
            anchors=tuple(filter(None, args.anchors.split(","))),
            variants=parse_variants(list(filter(None, args.variants.split(","))), config.rl),
            group_sizes=_parse_sizes(args.group_sizes, config.train.group_size),
            gradients=not args.no_gradients,
            environment=args.environment,
        )
        # The check counts devices, which starts JAX's backend with the settings of that time.
        start_backend(config)
        _check_choice(config, choice)
        workdir = Path(args.workdir or f"runs/{Path(args.config.partition(':')[0]).stem}")
        return run(config, workdir, choice)
    # One line whatever the message holds; texts of environments may have control characters.
    except (InputError, StorageError, EnvError, argparse.ArgumentError) as error:
        message = " ".join(str(error).split())
        print(f"gigpo_jax credit: {escape_controls(message)}", file=sys.stderr)
        return getattr(error, "status", 2)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gigpo credit",
        description="Measures the true advantage of single steps, and grades estimates of it.",
        epilog=EXAMPLE,
        allow_abbrev=False,
        exit_on_error=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        default="",
        metavar="FILE[:VARIANT]",
        help="experiment: a packaged config or a file",
    )
    parser.add_argument(
        "--workdir",
        default="",
        metavar="DIR",
        help="folder of the run; its newest checkpoint plays, if any",
    )
    parser.add_argument(
        "--steps", type=int, default=160, help="steps whose advantage is measured (%(default)s)"
    )
    parser.add_argument(
        "--continuations",
        type=int,
        default=48,
        help="number of continuations of each state before and after these steps (%(default)s)",
    )
    parser.add_argument(
        "--environment",
        default="",
        metavar="LABEL",
        help="label in env.mix of the environment to measure",
    )
    _add_grades(parser)
    return parser


def _add_grades(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that choose what is graded, and how."""
    parser.add_argument(
        "--anchors", default="", metavar="A,B", help="values of config.env.anchor to grade"
    )
    parser.add_argument(
        "--variants",
        default="",
        metavar="A:K=V,...",
        help="settings to grade too, such as gamma=1,graph_values:lam=0.5:shrinkage=1; "
        "without a name it is gigpo",
    )
    parser.add_argument(
        "--group-sizes",
        default="",
        metavar="N,N",
        help="grade the first N episodes of each task group, too",
    )
    parser.add_argument(
        "--pool",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="grade these finished measurements as one, into --workdir",
    )
    parser.add_argument(
        "--no-gradients", action="store_true", help="do not compare policy gradients"
    )


def _select_environment(config: ConfigDict, label: str) -> ConfigDict:
    """The config with the environment of a label alone."""
    # A run without env.mix has the one label "".
    environments = member_configs(config)
    if label not in environments:
        labels = ", ".join(filter(None, environments))
        if labels:
            reason = "credit measures one environment of env.mix"
            fix = f"name one: {labels}"
        else:
            reason = "the run has no env.mix"
            fix = "leave it out"
        raise InputError(reason, key="--environment", value=label, fix=fix)
    return environments[label]


def _run_pool(folders: Sequence[Path], workdir: Path) -> int:
    check_writable(workdir, "--workdir")
    rows, measured = pool_measurements(folders, seed=0)
    workdir.mkdir(parents=True, exist_ok=True)
    write_report(workdir, rows, measured, {"measurements": list(map(str, folders))})
    return 0


def _parse_sizes(text: str, largest: int) -> tuple[int, ...]:
    """The sizes to grade, the whole group last."""
    try:
        sizes = {int(word) for word in text.split(",") if word}
    except ValueError:
        # 0 is outside of the range below, so that both mistakes get the same message.
        sizes = {0}
    if sizes and not 2 <= min(sizes) <= max(sizes) <= largest:
        raise InputError(
            f"must be numbers from 2 to config.train.group_size={largest}, such as 4,8",
            key="--group-sizes",
            value=text,
        )
    # The whole group is always graded, even if the flag names only smaller sizes.
    return tuple(sorted(sizes | {largest}))


def _check_choice(config: ConfigDict, choice: MeasurementChoice) -> None:
    if choice.steps < 2:
        raise InputError("must be at least 2", key="--steps", value=choice.steps)
    # Each half needs two returns for its variance.
    if choice.continuations < 4:
        raise InputError(
            "must be at least 4, two for each half",
            key="--continuations",
            value=choice.continuations,
        )
    if config.distributed:
        raise InputError(
            "credit runs on one host", key="config.distributed", value="True", fix="use False"
        )
    # Each step is a batch of one row, which cannot be split over devices.
    if choice.gradients and len(jax.devices()) > 1:
        raise InputError(
            f"{len(jax.devices())} devices: policy gradients are compared on one",
            fix="add --no-gradients",
        )
