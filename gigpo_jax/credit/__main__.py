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
from gigpo_jax.credit.estimates import parse_variants
from gigpo_jax.credit.run import Plan, run
from gigpo_jax.errors import InputError

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
    parser.add_argument("--anchors", default="", metavar="A,B", help="values of config.env.options.anchor to grade")
    parser.add_argument(
        "--variants",
        default="",
        metavar="K=V,K=V",
        help="settings of gigpo to grade too, such as gamma=1,penalty_in=row",
    )
    parser.add_argument("--no-gradients", action="store_true", help="do not compare policy gradients")
    try:
        args, words = parser.parse_known_args(joined(argv))
        config = resolve(load_config(args.config, words))
        plan = Plan(
            steps=args.steps,
            continuations=args.continuations,
            anchors=tuple(filter(None, args.anchors.split(","))),
            variants=parse_variants(list(filter(None, args.variants.split(",")))),
            gradients=not args.no_gradients,
        )
        _check(config, plan)
        workdir = Path(args.workdir or f"runs/{Path(args.config.partition(':')[0]).stem}")
        return run(config, workdir, plan)
    except (InputError, argparse.ArgumentError) as error:
        print("gigpo_jax.credit: " + " ".join(str(error).split()), file=sys.stderr)
        return 2


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
