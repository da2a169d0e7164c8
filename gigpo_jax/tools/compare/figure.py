"""The curves of a comparison, with matplotlib: success against iterations, steps and wall time.

A figure has at most `MAX_LINES` lines, each with its name at its end. The interval of a line is a
bar beside its last point: bands of several arms would cover each other.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError, storage_errors
from gigpo_jax.core.files import replace_file
from gigpo_jax.core.spelling import nearest_names
from gigpo_jax.tools.compare.runs import Arm
from gigpo_jax.tools.compare.statistics import estimate_mean

# The baseline is grey. The others have colours of Okabe and Ito, which colour-blind readers can
# distinguish; the marker repeats the information of the colour.
STYLES = (("#555555", "o"), ("#0072B2", "s"), ("#D55E00", "^"), ("#009E73", "D"))
MAX_LINES = len(STYLES)
LABEL_GAP = 0.06  # height of a line of text, of the height of the axes
LABEL_CHARACTERS = 24  # of a line of text
BAR_GAP = 0.025  # between the bars of two lines, of the width of the axes


@dataclass(frozen=True)
class Line:
    """A line of a figure.

    Attributes:
      label: Name.
      x: Positions of the points, [E].
      estimates: Mean, low and high end of the interval at each point, [E, 3].
    """

    label: str
    x: np.ndarray
    estimates: np.ndarray


def select_arms(arms: Sequence[Arm], labels: Sequence[str]) -> list[Arm]:
    """The arms of a figure, the baseline first.

    Args:
      arms: All arms; the first is the baseline.
      labels: Names of arms to draw beside it; empty: those with the highest final success.

    Raises:
      InputError: an arm has no such name, or there are too many.
    """
    candidates = {arm.label: arm for arm in arms[1:]}
    for label in labels:
        if label not in candidates and label != arms[0].label:
            near = ", ".join(nearest_names(label, candidates) or candidates)
            raise InputError("no such arm", key="--lines", value=label, fix=f"nearest: {near}")
    # The baseline may be named, too: it is drawn anyway.
    selection = [candidates[label] for label in labels if label in candidates]
    # The baseline has one of the styles.
    if len(selection) >= MAX_LINES:
        reason = f"{len(selection)} arms beside {arms[0].label}"
        fix = f"name at most {MAX_LINES - 1}; more cannot be told apart"
        raise InputError(reason, key="--lines", value=",".join(labels), fix=fix)
    if not labels:
        best = sorted(candidates.values(), key=_final_success, reverse=True)[: MAX_LINES - 1]
        # In the order of the table: success only chooses the arms.
        selection = [arm for arm in candidates.values() if arm in best]
    return [arms[0], *selection]


def _final_success(arm: Arm) -> float:
    return float(np.nanmean(arm.stack_outcomes()[:, -1]))


def draw_curves(arms: Sequence[Arm], folder: Path) -> list[Path]:
    """Writes comparison.png and comparison.svg: means with 95% intervals over seeds and tasks.

    Args:
      arms: Arms as from `select_arms`.
      folder: Folder of the files.

    Raises:
      ImportError: matplotlib is not installed.
    """
    # Imported here: a comparison without figure does not need the package.
    import matplotlib.figure

    # Figure itself, not pyplot: it needs no display and leaves no global state.
    figure = matplotlib.figure.Figure(figsize=(12, 4.2), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True, width_ratios=(1.3, 1, 1))
    lines = [_make_lines(arm) for arm in arms]
    for name, axis in zip(lines[0], axes, strict=True):
        draw_lines(axis, [by_name[name] for by_name in lines], labels=axis is axes[0])
        axis.set_xlabel(name)
    run = arms[0].runs[0]
    axes[0].set_ylabel(f"success on {run.panel[0]}, %")
    seeds = sorted({len(arm.runs) for arm in arms})
    counts = " to ".join(str(count) for count in dict.fromkeys((seeds[0], seeds[-1])))
    plural = "" if seeds[-1] == 1 else "s"
    figure.suptitle(
        f"{len(run.tasks)} tasks, {counts} seed{plural}; bars: 95% at the end",
        fontsize=10,
    )
    paths = [folder / f"comparison.{suffix}" for suffix in ("png", "svg")]
    for path in paths:
        with storage_errors(path), replace_file(path) as temporary:
            figure.savefig(temporary, dpi=120, format=path.suffix[1:])
    return paths


def _make_lines(arm: Arm) -> dict[str, Line]:
    """An arm's line on each axis, by the axis's name."""
    won = arm.stack_outcomes()
    estimates = [estimate_mean(won[:, index]) for index in range(won.shape[1])]
    positions = {
        "training iterations": arm.runs[0].iterations,
        "environment steps (thousands)": np.mean([run.env_steps for run in arm.runs], 0) / 1e3,
        "wall time (minutes)": np.mean([run.seconds for run in arm.runs], 0) / 60,
    }
    return {name: Line(arm.label, x, 100 * np.array(estimates)) for name, x in positions.items()}


def draw_lines(
    axis: Any,
    lines: Sequence[Line],
    *,
    labels: bool = True,
    styles: Sequence[tuple[str, str]] = STYLES,
) -> None:
    """Draws lines; the first is the baseline.

    Args:
      axis: Axes of matplotlib.
      lines: Lines, at most `MAX_LINES`.
      labels: Whether bars of the last intervals and names stand at the ends of the lines.
      styles: Colour and marker of each line.
    """
    width = max(float(line.x[-1]) for line in lines)
    for index, line in enumerate(lines):
        mean = line.estimates[:, 0]
        colour, marker = styles[index]
        axis.plot(line.x, mean, linewidth=2, color=colour, marker=marker, markersize=4)
        if labels:
            # One beside the other, so that none covers another.
            bar = line.x[-1] + (index + 1) * BAR_GAP * width
            axis.vlines(bar, *line.estimates[-1, 1:], color=colour, linewidth=2)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)
    # Room for the bars; the names stand outside of the axes.
    right = width * (1 + (len(lines) + 1) * BAR_GAP)
    axis.set_xlim(-0.02 * width, right)
    if labels:
        _write_labels(axis, lines, right, [colour for colour, _ in styles])


def _write_labels(axis: Any, lines: Sequence[Line], right: float, colours: Sequence[str]) -> None:
    """Writes the names of lines at their ends."""
    low, high = axis.get_ylim()
    texts = [wrap_label(line.label) for line in lines]
    rows = max(text.count("\n") for text in texts) + 1
    ends = [line.estimates[-1, 0] for line in lines]
    heights = spread_heights(ends, rows * LABEL_GAP * (high - low))
    for text, height, colour in zip(texts, heights, colours, strict=False):
        axis.annotate(
            text,
            (right, height),
            va="center",
            color=colour,
            linespacing=0.95,
            annotation_clip=False,
        )


def wrap_label(label: str) -> str:
    """A name in lines of at most `LABEL_CHARACTERS`, broken after spaces and + if possible."""
    lines = [""]
    for word in re.findall(r"[^ +]+\+?| ", label):
        if lines[-1] and len(lines[-1]) + len(word) > LABEL_CHARACTERS:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.strip() for line in lines)


def spread_heights(heights: Sequence[float], gap: float) -> list[float]:
    """Moves heights of labels at least a gap apart, in their order and near their lines."""
    # Stable: arms with equal success stand in the order of the table.
    order = np.argsort(heights, kind="stable")
    spread = np.array(heights, float)[order]
    # A pair that gives way may come close to its next neighbour, so passes repeat. Their number is
    # bounded: names that overlap a little are better than a figure that never ends.
    for _ in range(10 * len(spread)):
        for index in range(len(spread) - 1):
            missing = gap - (spread[index + 1] - spread[index])
            if missing > 0:  # both give way
                spread[index] -= missing / 2
                spread[index + 1] += missing / 2
    result = np.empty_like(spread)
    result[order] = spread
    return result.tolist()
