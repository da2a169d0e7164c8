"""What a comparison says: numbers, a table, and the file with everything needed to check it again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigpo_jax.compare.runs import Arm
from gigpo_jax.compare.statistics import DRAWS, Estimate, area, estimate


@dataclass(frozen=True)
class Row:
    """One arm against the first.

    Attributes:
      arm: the arm.
      final: success after the last iteration.
      area: mean success over the run, by the trapezoid rule.
      final_difference: of the final success, this arm less the first one, over the seeds that both have; None for the
        first arm, and where they share no seed.
      area_difference: likewise.
      shared: how many seeds both have.
    """

    arm: Arm
    final: Estimate
    area: Estimate
    final_difference: Estimate | None = None
    area_difference: Estimate | None = None
    shared: int = 0


def rows_of(arms: Sequence[Arm]) -> list[Row]:
    """The numbers of all arms; the first is what the others are compared with."""
    return [_row(arm, arms[0] if number else None) for number, arm in enumerate(arms)]


def _row(arm: Arm, base: Arm | None) -> Row:
    iterations, won = arm.runs[0].iterations, arm.won()
    final, over = estimate(won[:, -1]), estimate(area(won, iterations))
    shared = sorted(set(arm.seeds) & set(base.seeds)) if base is not None else []
    if base is None or not shared:
        return Row(arm, final, over)
    ours, theirs = arm.won(shared), base.won(shared)
    return Row(
        arm,
        final,
        over,
        estimate(ours[:, -1] - theirs[:, -1]),
        estimate(area(ours, iterations) - area(theirs, iterations)),
        len(shared),
    )


def table(rows: Sequence[Row]) -> str:
    """A Markdown table; all numbers in %, differences in percentage points."""
    base = rows[0].arm.label
    lines = [
        f"| arm | seeds | final success (95%) | area (95%) | final, less {base} | area, less {base} |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        seeds = ", ".join(map(str, row.arm.seeds))
        cells = [row.arm.label, seeds, _cell(row.final), _cell(row.area)]
        cells += [_cell(x, "+") if x else "" for x in (row.final_difference, row.area_difference)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(value: Estimate, sign: str = "") -> str:
    mean, low, high = (format(100 * x, f"{sign}.1f") for x in value)
    return f"{mean} ({low} to {high})"


def record(rows: Sequence[Row]) -> dict[str, Any]:
    """Everything that the table and the figure were made from, as JSON values."""
    run = rows[0].arm.runs[0]
    return {
        "panel": {"name": run.panel[0], "sha256": run.panel[1], "tasks": list(run.tasks)},
        "iterations": run.iterations.tolist(),
        "bootstrap": {"draws": DRAWS, "seed": 0, "over": "seeds and tasks"},
        "arms": [
            {
                "label": row.arm.label,
                "final": row.final,
                "area": row.area,
                "final_difference": row.final_difference,
                "area_difference": row.area_difference,
                "shared_seeds": row.shared,
                "runs": [
                    {
                        "folder": str(one.folder),
                        "config": one.config,
                        "env_steps": one.env_steps.tolist(),
                        "seconds": one.seconds.tolist(),
                        "won": ["".join("-" if np.isnan(x) else str(int(x)) for x in curve) for curve in one.won],
                    }
                    for one in row.arm.runs
                ],
            }
            for row in rows
        ],
    }
