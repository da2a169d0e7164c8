"""Grades as a table for the console, as JSON and as a plot."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.credit.estimates import Estimate
from gigpo_jax.credit.grades import Interval, Measured, reliability
from gigpo_jax.files import write_json
from gigpo_jax.run.report import say

COLUMNS = {
    "corrected": "correlation",
    "difference": "minus grpo",
    "noise": "noise",
    "spearman": "rank corr.",
    "sign": "sign right",
    "zero": "no credit",
    "cosine_corrected": "gradient cos.",
    "optimal": "optimal play",
}


@dataclass(frozen=True)
class Row:
    """An estimate with its grades.

    Attributes:
      estimate: what was graded.
      group_size: from how many episodes of each task group it is; None: all.
      values: [N] f32, the estimate of the measured steps.
      labels: slice -> [N] labels of these steps.
      grades: by name; `COLUMNS` are those of the table.
      slices: as from `grades.by_slice`.
    """

    estimate: Estimate
    group_size: int | None
    values: np.ndarray
    labels: Mapping[str, np.ndarray]
    grades: Mapping[str, Interval]
    slices: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Algorithms, anchor and group size."""
        anchor = self.estimate.anchor
        parts = [" = ".join(self.estimate.labels), *([anchor] if anchor not in ("any", "") else [])]
        return ", ".join([*parts, *([f"{self.group_size} episodes"] if self.group_size else [])])


def report(folder: Path, rows: Sequence[Row], own: Measured, more: Mapping[str, Any]) -> None:
    """Prints the table; writes grades.json, with `more` in it, and, with matplotlib, grades.png."""
    share = reliability(own)
    say(
        f"{len(own.advantage)} steps of {len(np.unique(own.group))} task groups; standard deviation of the measured "
        f"advantage {own.advantage.std():.2f}, reliability {share:.2f}"
    )
    say(table(rows))
    write_json(folder / "grades.json", {"reliability": share, **as_json(rows), **more})
    say(f"written: {folder / 'grades.json'}")
    plot(rows, own, folder / "grades.png")


def table(rows: Sequence[Row]) -> str:
    """A Markdown table, the best correlation first; brackets hold 95% intervals."""
    shown = {name: title for name, title in COLUMNS.items() if any(name in row.grades for row in rows)}
    lines = ["| " + " | ".join(["estimate", *shown.values()]) + " |", "|---" * (len(shown) + 1) + "|"]
    for row in ranked(rows):
        lines.append("| " + " | ".join([row.label, *(_cell(row.grades.get(name)) for name in shown)]) + " |")
    return "\n".join(lines)


def ranked(rows: Sequence[Row]) -> list[Row]:
    """The best correlation first; those without any last."""
    return sorted(rows, key=lambda row: -np.nan_to_num(row.grades["corrected"][0], nan=-2.0))


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows as plain values, "estimates", whose "labels" is an index into the other entry; undefined values are null."""
    labels: dict[str, int] = {}
    for row in rows:
        labels.setdefault(_labels(row), len(labels))
    estimates = [
        {
            "algorithms": list(row.estimate.labels),
            "anchor": row.estimate.anchor,
            "group_size": row.group_size,
            "sources": [list(source) for source in row.estimate.sources],
            "labels": labels[_labels(row)],
            "values": [round(float(value), 6) for value in row.values],
            "grades": _plain(row.grades),
            "slices": _plain(row.slices),
        }
        for row in ranked(rows)
    ]
    return {"estimates": estimates, "labels": [json.loads(text) for text in labels]}


def _labels(row: Row) -> str:
    return json.dumps({name: label.tolist() for name, label in row.labels.items()})


def plot(rows: Sequence[Row], measured: Measured, path: Path) -> None:
    """Draws the correlations with their intervals, and the measured advantages in order.

    Args:
      rows: the graded estimates.
      measured: what they were graded against.
      path: a .png; without matplotlib one line says that there is none.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        say("no plot: matplotlib is missing (pip install 'gigpo_jax[plot]')")
        return
    shown = [row for row in ranked(rows)[::-1] if math.isfinite(row.grades["corrected"][0])]
    if not shown:
        say("no plot: no correlation is defined; the measured advantages do not differ by more than their noise")
        return
    figure = Figure(figsize=(13, 1.5 + 0.3 * len(shown)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    value, low, high = np.array([row.grades["corrected"] for row in shown]).T
    left.errorbar(value, range(len(shown)), xerr=(value - low, high - value), fmt="o", color="#0072B2", capsize=3)
    left.set_yticks(range(len(shown)), [row.label for row in shown], fontsize=8)
    left.axvline(0, color="grey", linewidth=0.8)
    left.set_xlabel("correlation with the measured advantage, corrected for its noise (95%)")
    order = np.argsort(measured.advantage)
    right.errorbar(
        range(len(order)), measured.advantage[order], yerr=measured.error[order], fmt=".", color="#D55E00", alpha=0.6
    )
    right.set_xlabel("steps, in order")
    right.set_ylabel("measured advantage, reward")
    figure.savefig(path, dpi=120)
    say(f"written: {path}")


def _cell(grade: Interval | None) -> str:
    if grade is None or not math.isfinite(grade[0]):
        return "-"
    value, low, high = (f"{x:.2f}" if abs(x) < 100 else f"{x:.4g}" for x in grade)
    return f"{value} [{low}, {high}]"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
