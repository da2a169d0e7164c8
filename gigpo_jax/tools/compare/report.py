"""The numbers of a comparison, its table, and the file with all data behind them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gigpo_jax.tools.compare.comparisons import Comparison
from gigpo_jax.tools.compare.runs import Arm, Run
from gigpo_jax.tools.compare.statistics import DRAWS, MeanEstimate, estimate_mean, measure_area


@dataclass(frozen=True)
class ArmRow:
    """An arm and its differences from the first arm.

    Attributes:
      arm: The arm.
      final: Success after the last iteration.
      area: Mean success over the run, by the trapezoid rule.
      final_difference: Final success of this arm minus that of the first one, over the seeds of
        both; None for the first arm, and without a common seed.
      area_difference: Difference of the areas, likewise.
      shared: Number of seeds of both.
    """

    arm: Arm
    final: MeanEstimate
    area: MeanEstimate
    final_difference: MeanEstimate | None = None
    area_difference: MeanEstimate | None = None
    shared: int = 0


def make_rows(arms: Sequence[Arm]) -> list[ArmRow]:
    """Computes the numbers of arms; the first is the baseline."""
    baseline = arms[0]
    return [_make_row(baseline), *(_compare_row(arm, baseline) for arm in arms[1:])]


def _make_row(arm: Arm) -> ArmRow:
    won = arm.stack_outcomes()
    area = measure_area(won, arm.runs[0].iterations)
    return ArmRow(arm, final=estimate_mean(won[:, -1]), area=estimate_mean(area))


def _compare_row(arm: Arm, baseline: Arm) -> ArmRow:
    row = _make_row(arm)
    # Runs with equal seeds draw equal tasks in every iteration. What the seeds share cancels in the
    # difference.
    seeds = sorted(set(arm.seeds) & set(baseline.seeds))
    if not seeds:
        return row
    iterations = arm.runs[0].iterations
    won = arm.stack_outcomes(seeds)
    baseline_won = baseline.stack_outcomes(seeds)
    area = measure_area(won, iterations)
    baseline_area = measure_area(baseline_won, iterations)
    return ArmRow(
        arm,
        final=row.final,
        area=row.area,
        final_difference=estimate_mean(won[:, -1] - baseline_won[:, -1]),
        area_difference=estimate_mean(area - baseline_area),
        shared=len(seeds),
    )


def format_arms(rows: Sequence[ArmRow]) -> str:
    """A Markdown table in %; differences in percentage points."""
    base = rows[0].arm.label
    lines = [
        f"| arm | seeds | final success (95%) | area (95%) | final, less {base} | "
        f"area, less {base} |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            row.arm.label,
            ", ".join(map(str, row.arm.seeds)),
            _format_estimate(row.final),
            _format_estimate(row.area),
            _format_difference(row.final_difference),
            _format_difference(row.area_difference),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _format_estimate(estimate: MeanEstimate) -> str:
    mean, low, high = (format(100 * value, ".1f") for value in estimate)
    return f"{mean} ({low} to {high})"


def _format_difference(estimate: MeanEstimate | None) -> str:
    if estimate is None:
        return ""
    mean, low, high = (format(100 * value, "+.1f") for value in estimate)
    return f"{mean} ({low} to {high})"


def describe_machines(rows: Sequence[ArmRow]) -> str:
    """Says which runs come from which type of machine.

    The lines are "" if all are of one type.
    """
    folders: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        for run in row.arm.runs:
            folders.setdefault(run.machines, []).append(str(run.folder))
    if len(folders) < 2:
        return ""
    lines = ["The runs come from machines of different types: equal seeds have other last bits."]
    for machines, names in folders.items():
        lines.append(f"  {'; then '.join(machines) or 'not recorded'}: {' '.join(names)}")
    return "\n".join(lines)


def make_record(rows: Sequence[ArmRow], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """All data behind table and figure, as JSON values."""
    run = rows[0].arm.runs[0]
    return {
        "panel": {"name": run.panel[0], "sha256": run.panel[1], "tasks": list(run.tasks)},
        "iterations": run.iterations.tolist(),
        "bootstrap": {"draws": DRAWS, "seed": 0, "over": "seeds and tasks"},
        "arms": [_record_row(row) for row in rows],
        "comparisons": [asdict(comparison) for comparison in comparisons],
    }


def _record_row(row: ArmRow) -> dict[str, Any]:
    return {
        "label": row.arm.label,
        "final": row.final,
        "area": row.area,
        "final_difference": row.final_difference,
        "area_difference": row.area_difference,
        "shared_seeds": row.shared,
        "runs": [_record_run(run) for run in row.arm.runs],
    }


def _record_run(run: Run) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "config": run.config,
        "env_steps": run.env_steps.tolist(),
        "seconds": run.seconds.tolist(),
        "machines": list(run.machines),
        "won": [_record_outcomes(outcomes) for outcomes in run.won],
    }


def _record_outcomes(outcomes: np.ndarray) -> str:
    """The outcomes of one evaluation as a text.

    It has 1, 0 and -, the last for aborted episodes.
    """
    return "".join("-" if np.isnan(value) else str(int(value)) for value in outcomes)
