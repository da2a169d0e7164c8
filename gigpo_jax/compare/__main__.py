"""The command line: python -m gigpo_jax.compare RUN RUN ... [--out DIR], or with --config to play the runs first."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gigpo_jax.compare import campaign, figure, report
from gigpo_jax.compare.runs import arms_of, check_comparable, read_run
from gigpo_jax.errors import InputError, StorageError, writing
from gigpo_jax.files import write_json

EXAMPLE = """examples:
  python -m gigpo_jax.compare runs/grpo0 runs/gigpo0 --out=runs/comparison
  python -m gigpo_jax.compare --config=configs/quickstart.py --algorithms=grpo,gigpo,gigpo:rl.preset=paper --seeds=0,1,2

Other flags, such as --config.train.iterations=60, go to every run."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status: 0 done, 2 bad input, or that of a run that failed."""
    parser = argparse.ArgumentParser(
        prog="python -m gigpo_jax.compare",
        description="Compares finished runs on the same panel: success, paired differences, 95% intervals, curves.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="a workdir; the first is the baseline")
    parser.add_argument("--out", type=Path, default=Path("runs/comparison"), help="where results go (%(default)s)")
    parser.add_argument("--config", help="play the runs of this config that are missing, in folders under --out")
    parser.add_argument("--algorithms", help="of these runs, such as grpo,gigpo:rl.preset=paper; the first: baseline")
    parser.add_argument("--seeds", default="0", help="of these runs, such as 0,1,2 (%(default)s)")
    args, flags = parser.parse_known_args(argv)
    try:
        return compare(args, flags)
    except (InputError, StorageError) as error:
        print(f"gigpo_jax.compare: {' '.join(str(error).split())}", file=sys.stderr)
        return error.status


def compare(args: argparse.Namespace, flags: Sequence[str]) -> int:
    """Plays what is missing, reads all runs, and writes the result."""
    unknown = [flag for flag in flags if not (args.config and flag.startswith("--config.") and "=" in flag)]
    if unknown:
        raise InputError(f"{unknown[0]}: not a flag; see --help")
    folders = list(args.runs)
    if args.config:
        if not args.algorithms or not all(part.strip().isdigit() for part in args.seeds.split(",")):
            raise InputError(f"--algorithms={args.algorithms} --seeds={args.seeds}: give names and whole numbers")
        seeds = [int(seed) for seed in args.seeds.split(",")]
        planned = campaign.plan(args.config, args.algorithms.split(","), seeds, args.out, flags)
        status = campaign.play(planned)
        if status:
            return status
        folders += [run.folder for run in planned]
    if len(folders) < 2:
        raise InputError(f"{len(folders)} run: give two or more workdirs, or --config with --algorithms and --seeds")
    runs = [read_run(folder) for folder in folders]
    check_comparable(runs)
    rows = report.rows_of(arms_of(runs))
    write_json(args.out / "comparison.json", report.record(rows))
    text = report.table(rows)
    with writing(args.out):
        (args.out / "comparison.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    try:
        drawn = figure.draw([row.arm for row in rows], args.out)
    except ImportError:
        print("no curves: they need matplotlib; pip install 'gigpo_jax[plot]'", file=sys.stderr)
        drawn = []
    print("written:", *[args.out / f"comparison.{kind}" for kind in ("json", "md")], *drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
