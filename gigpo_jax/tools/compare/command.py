"""The command line gigpo compare RUN RUN ... [--out DIR]; with --config it plays missing runs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gigpo_jax.core.errors import (
    InputError,
    StorageError,
    escape_controls,
    storage_errors,
)
from gigpo_jax.core.files import replace_file, write_json
from gigpo_jax.core.installation import install_command
from gigpo_jax.core.spelling import nearest_names
from gigpo_jax.tools.compare import campaign, figure, report
from gigpo_jax.tools.compare.comparisons import (
    format_comparisons,
    list_comparisons,
    list_explorations,
)
from gigpo_jax.tools.compare.runs import Arm, check_comparable, group_arms, read_run

EXAMPLE = """examples:
  gigpo compare runs/grpo0 runs/gigpo0 --out=runs/comparison
  gigpo compare --config=configs/quickstart.py \\
      --algorithms=grpo,gigpo,gigpo:rl.preset=paper --seeds=0,1,2

Other flags, such as --config.train.iterations=60, go to every run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Compares runs and returns the exit status: 0 done, 2 bad input, or a failed run's status."""
    args, flags = _make_parser().parse_known_args(argv)
    try:
        return compare_runs(args, flags)
    except (InputError, StorageError) as error:
        message = " ".join(str(error).split())
        print(f"gigpo_jax compare: {escape_controls(message)}", file=sys.stderr)
        return error.status


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gigpo compare",
        description=(
            "Compares finished runs on the same panel: success, paired differences, "
            "95% intervals, curves."
        ),
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="*", type=Path, metavar="RUN", help="a workdir; the first is the baseline"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/comparison"), help="folder of results (%(default)s)"
    )
    parser.add_argument(
        "--config", help="play the runs of this config that are missing, in folders under --out"
    )
    parser.add_argument(
        "--algorithms",
        help="algorithms to play, such as grpo,gigpo:rl.preset=paper; the first: baseline",
    )
    parser.add_argument(
        "--baseline", default="", metavar="ARM", help="arm to compare with; default: the first"
    )
    parser.add_argument(
        "--lines",
        default="",
        metavar="ARM,ARM",
        help="arms in the figure beside the baseline; default: the three with most success",
    )
    parser.add_argument(
        "--evaluations",
        default="",
        metavar="FILE,FILE",
        help="files of gigpo eval in every workdir, whose outcomes are compared too",
    )
    parser.add_argument(
        "--main",
        default="",
        metavar="ARM",
        help="arm whose final success is the main comparison; all others are corrected by Holm",
    )
    parser.add_argument("--seeds", default="0", help="seeds to play, such as 0,1,2 (%(default)s)")
    return parser


def compare_runs(args: argparse.Namespace, flags: Sequence[str]) -> int:
    """Plays missing runs, reads all, and writes the comparison."""
    # Everything that argparse did not know: only config flags have a use, for runs to be played.
    for flag in flags:
        if not args.config or not flag.startswith("--config.") or "=" not in flag:
            raise InputError("not a flag", key=flag, fix="see --help")
    folders = list(args.runs)
    if args.config:
        # All configs before the first run.
        campaign_runs = _list_campaign(args, flags)
        campaign.check_runs(campaign_runs)
        status = campaign.play_runs(campaign_runs)
        # A run that failed or was stopped leaves no comparison of half a campaign.
        if status:
            return status
        folders += [run.folder for run in campaign_runs]
    if len(folders) < 2:
        raise InputError(
            f"{len(folders)} given",
            key="RUN",
            fix="give two or more workdirs, or --config with --algorithms and --seeds",
        )

    runs = [read_run(folder) for folder in folders]
    check_comparable(runs)
    arms = _order_arms(group_arms(runs), args.baseline)
    # Before the table is written: a wrong --lines leaves no files behind.
    drawn_arms = figure.select_arms(arms, list(filter(None, args.lines.split(","))))
    rows = report.make_rows(arms)
    files = list(filter(None, args.evaluations.split(",")))
    comparisons = list_comparisons(arms, files, args.main)
    explorations = list_explorations(arms, files)
    json_path = args.out / "comparison.json"
    table_path = args.out / "comparison.md"
    write_json(json_path, report.make_record(rows, comparisons, explorations))
    tables = [
        report.format_arms(rows),
        format_comparisons(comparisons, arms[0].label),
        format_comparisons(explorations, "GiGPO", exploratory=True),
    ]
    table = "\n\n".join(filter(None, tables))
    with storage_errors(table_path), replace_file(table_path) as temporary:
        temporary.write_text(table + "\n", encoding="utf-8")
    print(table)
    machines = report.describe_machines(rows)
    if machines:
        print(escape_controls(machines))
    figure_paths: list[Path] = []
    try:
        figure_paths = figure.draw_curves(drawn_arms, args.out)
    # The table and the data stand without the optional package.
    except ImportError:
        print(f"no curves: they need matplotlib; {install_command('plot')}", file=sys.stderr)
    hidden = [arm.label for arm in arms if arm not in drawn_arms]
    if figure_paths and hidden:
        print(f"not in the figure: {', '.join(hidden)}; choose with --lines")
    print("written:", json_path, table_path, *figure_paths)
    return 0


def _order_arms(arms: list[Arm], baseline: str) -> list[Arm]:
    """The arms with the baseline first.

    Raises:
      InputError: no arm has the baseline's name.
    """
    if not baseline:
        return arms
    labels = [arm.label for arm in arms]
    if baseline not in labels:
        near = ", ".join(nearest_names(baseline, labels) or labels)
        raise InputError("no such arm", key="--baseline", value=baseline, fix=f"nearest: {near}")
    # The sort is stable: the others keep their order.
    return sorted(arms, key=lambda arm: arm.label != baseline)


def _list_campaign(
    args: argparse.Namespace, flags: Sequence[str]
) -> Sequence[campaign.CampaignRun]:
    seeds = args.seeds.split(",")
    if not args.algorithms or not all(seed.strip().isdigit() for seed in seeds):
        raise InputError(
            "not names and whole numbers",
            key=f"--algorithms={args.algorithms} --seeds",
            value=args.seeds,
            fix="give them like --algorithms=grpo,gigpo --seeds=0,1",
        )
    return campaign.list_runs(
        args.config, args.algorithms.split(","), [int(seed) for seed in seeds], args.out, flags
    )
