"""Grades as a table for the console, as JSON and as a plot."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.core.errors import storage_errors
from gigpo_jax.core.files import replace_file, write_json
from gigpo_jax.core.installation import install_command
from gigpo_jax.run.report import say
from gigpo_jax.tools.credit.estimates import Estimate
from gigpo_jax.tools.credit.grades import Measured, reliability
from gigpo_jax.tools.credit.intervals import Interval

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
      estimate: The graded estimate.
      group_size: Number of episodes of each task group behind it; None: all.
      values: [N] f32, estimated advantages of the measured steps.
      labels: slice -> [N] labels of these steps.
      grades: Grades by name; `COLUMNS` are the grades of the table.
      slices: Grades within slices, as from `grades.grade_slices`.
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
        words = [" = ".join(self.estimate.labels)]
        if self.estimate.anchor not in ("any", ""):
            words.append(self.estimate.anchor)
        if self.group_size:
            words.append(f"{self.group_size} episodes")
        return ", ".join(words)


def write_report(
    folder: Path, rows: Sequence[Row], measured: Measured, extra: Mapping[str, Any]
) -> None:
    """Prints the table; writes grades.json with `extra`, and grades.png if there is matplotlib."""
    share = reliability(measured)
    say(
        f"{len(measured.advantage)} steps of {measured.group_count} task groups; standard "
        f"deviation of the measured advantage {measured.advantage.std():.2f}, "
        f"reliability {share:.2f}"
    )
    say(format_table(rows))
    summary = {"reliability": share, "groups": measured.group_count}
    write_json(folder / "grades.json", summary | as_json(rows) | dict(extra))
    say(f"written: {folder / 'grades.json'}")
    plot_grades(rows, measured, folder / "grades.png")


def format_table(rows: Sequence[Row]) -> str:
    """A Markdown table, best correlation first, with 95% intervals."""
    columns = {
        name: title for name, title in COLUMNS.items() if any(name in row.grades for row in rows)
    }
    lines = [_table_line(["estimate", *columns.values()]), "|---" * (len(columns) + 1) + "|"]
    for row in rank_rows(rows):
        cells = [_format_interval(row.grades.get(name)) for name in columns]
        lines.append(_table_line([row.label, *cells]))
    return "\n".join(lines)


def _table_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def rank_rows(rows: Sequence[Row]) -> list[Row]:
    """The best correlation first; rows without any last."""
    # -2 is below every correlation.
    return sorted(rows, key=lambda row: -np.nan_to_num(row.grades["corrected"][0], nan=-2.0))


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows as plain values; undefined values are null.

    Returns:
      "estimates", each with "labels", an index into the second entry, "labels".
    """
    # Labels depend on the anchor option alone, so many estimates share one entry of the file.
    labels: dict[str, int] = {}
    for row in rows:
        labels.setdefault(_labels_key(row), len(labels))
    estimates = [
        {
            "algorithms": list(row.estimate.labels),
            "anchor": row.estimate.anchor,
            "group_size": row.group_size,
            "sources": [list(source) for source in row.estimate.sources],
            "labels": labels[_labels_key(row)],
            # A pool finds equal estimates by these numbers.
            "values": [round(float(value), 6) for value in row.values],
            "grades": _plain_values(row.grades),
            "slices": _plain_values(row.slices),
        }
        for row in rank_rows(rows)
    ]
    return {"estimates": estimates, "labels": [json.loads(text) for text in labels]}


def _labels_key(row: Row) -> str:
    return json.dumps({name: label.tolist() for name, label in row.labels.items()})


def plot_grades(rows: Sequence[Row], measured: Measured, path: Path) -> None:
    """Draws correlations with intervals, and the measured advantages in order.

    Args:
      rows: Graded estimates.
      measured: Measured advantages.
      path: PNG file; without matplotlib one line says that it is not written.
    """
    # Imported here: the table and the JSON file do not need the package.
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        say(f"no plot: matplotlib is missing ({install_command('plot')})")
        return
    plotted = [row for row in rank_rows(rows) if math.isfinite(row.grades["corrected"][0])]
    plotted.reverse()  # the first row stands at the bottom
    if not plotted:
        say(
            "no plot: no correlation is defined; the measured advantages do not differ by more "
            "than their noise"
        )
        return
    figure = Figure(figsize=(13, 1.5 + 0.3 * len(plotted)), layout="constrained")
    grade_axes, step_axes = figure.subplots(1, 2, width_ratios=(3, 2))
    value, lower, upper = np.array([row.grades["corrected"] for row in plotted]).T
    grade_axes.errorbar(
        value,
        range(len(plotted)),
        xerr=(value - lower, upper - value),
        fmt="o",
        color="#0072B2",
        capsize=3,
    )
    grade_axes.set_yticks(range(len(plotted)), [row.label for row in plotted], fontsize=8)
    grade_axes.axvline(0, color="grey", linewidth=0.8)
    grade_axes.set_xlabel("correlation with the measured advantage, corrected for its noise (95%)")
    order = np.argsort(measured.advantage)
    step_axes.errorbar(
        range(len(order)),
        measured.advantage[order],
        yerr=measured.error[order],
        fmt=".",
        color="#D55E00",
        alpha=0.6,
    )
    step_axes.set_xlabel("steps, in order")
    step_axes.set_ylabel("measured advantage, reward")
    # The file appears whole: a reader may have the old plot open.
    with storage_errors(path), replace_file(path) as temporary:
        figure.savefig(temporary, dpi=120, format=path.suffix[1:])
    say(f"written: {path}")


def _format_interval(grade: Interval | None) -> str:
    if grade is None or not math.isfinite(grade[0]):
        return "-"
    value, lower, upper = (_format_number(x) for x in grade)
    return f"{value} [{lower}, {upper}]"


def _format_number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.4g}"


def _plain_values(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain_values(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain_values(inner) for inner in value]
    # JSON has no NaN and no infinity.
    return None if isinstance(value, float) and not math.isfinite(value) else value
