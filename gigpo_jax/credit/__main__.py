"""The command line: python -m gigpo_jax.credit --config=FILE [--workdir=DIR] [--config.KEY=VALUE ...]"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from absl import logging
from ml_collections import ConfigDict

from gigpo_jax.config import resolve
from gigpo_jax.config.command_line import joined, load_config
from gigpo_jax.config.mix import members
from gigpo_jax.credit.estimates import parse_variants
from gigpo_jax.credit.pool import pool
from gigpo_jax.credit.report import report
from gigpo_jax.credit.run import Plan, run
from gigpo_jax.errors import InputError
from gigpo_jax.run.workdir import check_writable

EXAMPLE = """example:
  python -m gigpo_jax.credit --config=configs/quickstart.py --anchors=feedback,feedback+inventory+sticky

Other flags, such as --config.rl.gamma=1, change the config. The same command continues a stopped measurement."""


def main(argv: Sequence[str]) -> int:
    """Measures and grades; returns the exit status."""
    logging.set_verbosity(logging.WARNING)
    parser = argparse.ArgumentParser(
        prog="python -m gigpo_jax.credit",
        description="Measures the true advantage of single steps and grades the algorithms' estimates of it.",
        epilog=EXAMPLE,
        allow_abbrev=False,
        exit_on_error=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", default="", metavar="FILE[:VARIANT]", help="the experiment, see configs/")
    parser.add_argument("--workdir", default="", metavar="DIR", help="of the run; its newest checkpoint plays, if any")
    parser.add_argument("--steps", type=int, default=160, help="steps whose advantage is measured (%(default)s)")
    parser.add_argument(
        "--continuations", type=int, default=48, help="of each state before and after these steps (%(default)s)"
    )
    parser.add_argument("--environment", default="", metavar="LABEL", help="which of env.mix is measured")
    parser.add_argument("--anchors", default="", metavar="A,B", help="values of config.env.options.anchor to grade")
    parser.add_argument(
        "--variants",
        default="",
        metavar="K=V,K=V",
        help="settings of gigpo to grade too, such as gamma=1,penalty_in=row",
    )
    parser.add_argument(
        "--group-sizes", default="", metavar="N,N", help="grade the first N episodes of each task group, too"
    )
    parser.add_argument(
        "--pool", nargs="+", type=Path, metavar="DIR", help="grade these finished measurements as one, into --workdir"
    )
    parser.add_argument("--no-gradients", action="store_true", help="do not compare policy gradients")
    try:
        args, words = parser.parse_known_args(argv)
        if args.pool:
            return _pool(args.pool, Path(args.workdir or "runs/pool"))
        config = _one_environment(resolve(load_config(args.config, joined(words))), args.environment)
        plan = Plan(
            steps=args.steps,
            continuations=args.continuations,
            anchors=tuple(filter(None, args.anchors.split(","))),
            variants=parse_variants(list(filter(None, args.variants.split(",")))),
            group_sizes=_sizes(args.group_sizes, config.train.group_size),
            gradients=not args.no_gradients,
            environment=args.environment,
        )
        _check(config, plan)
        workdir = Path(args.workdir or f"runs/{Path(args.config.partition(':')[0]).stem}")
        return run(config, workdir, plan)
    except (InputError, argparse.ArgumentError) as error:
        print("gigpo_jax.credit: " + " ".join(str(error).split()), file=sys.stderr)
        return 2


def _one_environment(config: ConfigDict, label: str) -> ConfigDict:
    """The config with the environment of a label alone."""
    found = members(config)
    if label not in found:
        labels = ", ".join(filter(None, found))
        fix = (
            f"credit measures one environment of env.mix; name one: {labels}" if labels else "of env.mix; leave it out"
        )
        raise InputError(f"--environment={label}: {fix}")
    return found[label]


def _pool(folders: Sequence[Path], workdir: Path) -> int:
    check_writable(workdir, "--workdir")
    rows, own = pool(folders, seed=0)
    workdir.mkdir(parents=True, exist_ok=True)
    report(workdir, rows, own, {"measurements": list(map(str, folders))})
    return 0


def _sizes(text: str, most: int) -> tuple[int, ...]:
    """The sizes to grade, the whole group last."""
    try:
        sizes = {int(part) for part in text.split(",") if part}
    except ValueError:
        sizes = {0}
    if sizes and not 2 <= min(sizes) <= max(sizes) <= most:
        raise InputError(f"--group-sizes={text}: must be numbers from 2 to config.train.group_size={most}, such as 4,8")
    return tuple(sorted(sizes | {most}))


def _check(config: ConfigDict, plan: Plan) -> None:
    if plan.steps < 2:
        raise InputError(f"--steps={plan.steps}: must be at least 2")
    if plan.continuations < 4:
        raise InputError(f"--continuations={plan.continuations}: must be at least 4, two for each half")
    if config.distributed:
        raise InputError("config.distributed=True: credit runs on one host; use False")
    if plan.gradients and len(jax.devices()) > 1:
        raise InputError(f"{len(jax.devices())} devices: policy gradients are compared on one; add --no-gradients")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
