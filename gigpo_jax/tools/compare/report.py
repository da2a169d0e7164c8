"""The numbers of a comparison, its table, and the file with all data behind them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gigpo_jax.tools.compare.comparisons import Comparison
from gigpo_jax.tools.compare.runs import Arm, Run
from gigpo_jax.tools.compare.statistics import DRAWS, bootstrap_mean, estimate_mean, measure_area

OUTCOMES = ("final", "area", "final_difference", "area_difference")  # the columns, in order


@dataclass(frozen=True)
class ArmRow:
    """Outcomes of an arm, and differences from the first.

    Attributes:
      arm: The arm.
      outcomes: Tables [S, G] f64, NaN where there is no outcome. "final": success after the last
        iteration; "area": mean success over the run, by the trapezoid rule; "final_difference" and
        "area_difference": values of this arm minus values of the first one, over the seeds of both,
        which the first arm and one without a common seed do not have.
      shared: Number of seeds of both.
    """

    arm: Arm
    outcomes: dict[str, np.ndarray]
    shared: int = 0


def make_rows(arms: Sequence[Arm]) -> list[ArmRow]:
    """Computes the outcomes of arms; the first is the baseline."""
    baseline = arms[0]
    rows = [ArmRow(baseline, _read_outcomes(baseline, baseline.seeds))]
    return rows + [_compare_row(arm, baseline) for arm in arms[1:]]


def _read_outcomes(arm: Arm, seeds: Sequence[int]) -> dict[str, np.ndarray]:
    won = arm.stack_outcomes(seeds)
    return {"final": won[:, -1], "area": measure_area(won, arm.runs[0].iterations)}


def _compare_row(arm: Arm, baseline: Arm) -> ArmRow:
    outcomes = _read_outcomes(arm, arm.seeds)
    # Runs with equal seeds draw equal tasks in every iteration. What the seeds share cancels in the
    # difference.
    seeds = sorted(set(arm.seeds) & set(baseline.seeds))
    if seeds:
        shared = _read_outcomes(arm, seeds)
        baseline_outcomes = _read_outcomes(baseline, seeds)
        for name in shared:
            outcomes[f"{name}_difference"] = shared[name] - baseline_outcomes[name]
    return ArmRow(arm, outcomes, len(seeds))


def format_arms(rows: Sequence[ArmRow]) -> str:
    """A Markdown table in %; differences in percentage points."""
    base = rows[0].arm.label
    lines = [
        f"| arm | seeds | final success (95%) | area (95%) | final, minus {base} | "
        f"area, minus {base} |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            row.arm.label,
            ", ".join(map(str, row.arm.seeds)),
            *(_format_estimate(row, name) for name in OUTCOMES),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _format_estimate(row: ArmRow, name: str) -> str:
    if name not in row.outcomes:
        return ""
    sign = "+" if name.endswith("difference") else ""
    values = estimate_mean(row.outcomes[name])
    mean, low, high = (format(100 * value, f"{sign}.1f") for value in values)
    return f"{mean} ({low} to {high})"


def describe_machines(rows: Sequence[ArmRow]) -> str:
    """Lists the runs of each type of machine; "" if all runs come from one type."""
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


def make_record(
    rows: Sequence[ArmRow],
    comparisons: Sequence[Comparison],
    explorations: Sequence[Comparison] = (),
) -> dict[str, Any]:
    """All data behind table and figure, as JSON values.

    Bootstrap intervals stand beside the others, so that numbers in earlier texts can be checked.
    """
    run = rows[0].arm.runs[0]
    return {
        "panel": {"name": run.panel[0], "sha256": run.panel[1], "tasks": list(run.tasks)},
        "iterations": run.iterations.tolist(),
        "intervals": "crossed random effects of seeds and tasks, Satterthwaite",
        "bootstrap": {"draws": DRAWS, "seed": 0, "over": "seeds and tasks"},
        "arms": [_record_row(row) for row in rows],
        "comparisons": [asdict(comparison) for comparison in comparisons],
        "explorations": [asdict(comparison) for comparison in explorations],
    }


def _record_row(row: ArmRow) -> dict[str, Any]:
    tables = {name: row.outcomes.get(name) for name in OUTCOMES}
    return {
        "label": row.arm.label,
        **{name: None if x is None else estimate_mean(x) for name, x in tables.items()},
        "bootstrap": {name: None if x is None else bootstrap_mean(x) for name, x in tables.items()},
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
    """The outcomes of one evaluation as a text of 1, 0 and -, where - is an aborted episode."""
    return "".join("-" if np.isnan(value) else str(int(value)) for value in outcomes)
