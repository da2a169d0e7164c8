"""Draws docs/success.png and docs/evidence.png from the runs in benchmarks/results/alfworld_long,
docs/pooled.png from those in alfworld_pooled, and docs/tabular_credit.png and
docs/tabular_learning.png from the files of the grid worlds.

    python docs/make_figures.py

Mean success on the panel `long_unseen` (temperature 0.4), against iterations; gains over GRPO in
grid worlds, against each dial. Bars are 95% t-intervals over seeds.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import t

from gigpo_jax.tools.compare.figure import STYLES, Line, draw_lines

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
METRIC = "val/sampled/success_rate"
TITLE = "Household games in unseen rooms, at most 30 actions\n{} seeds; bars: 95% t-intervals"
FIGURES = {  # file -> folder of the runs, number of seeds, and label of each arm's folders
    "success": (
        "alfworld_long",
        10,
        {
            "grpo": "GRPO",
            "gigpo": "GiGPO",
            "repeat_discount_gigpo": "GiGPO with repeat discount",
        },
    ),
    "evidence": (
        "alfworld_long",
        5,
        {
            "grpo": "GRPO",
            "rloo": "RLOO",
            "gigpo": "GiGPO",
            "gigpo_finer": "GiGPO, finer anchor states",
        },
    ),
    "pooled": (
        "alfworld_pooled/reported",
        8,
        {
            "grpo_lr1e-4": "GRPO",
            "gigpo_lr1e-4": "GiGPO",
            "repeat_discount_gigpo_lr3e-4": "GiGPO with repeat discount",
            "repeat_discount_graph_values_episode_lr3e-4": "combination",
        },
    ),
}
# One colour and marker for one algorithm in all figures.
STYLE_OF = dict(zip(("grpo", "gigpo", "repeat_discount_gigpo", "gigpo_finer"), STYLES, strict=True))
STYLE_OF |= {"rloo": ("#CC79A7", "v"), "salt": ("#E69F00", "v"), "graphgpo": ("#56B4E9", "D")}
STYLE_OF |= {"graph_values": ("#000000", "o"), "exact": ("#882255", "*")}
STYLE_OF |= {"repeat_discount_graph_values_episode": ("#000000", "o")}
GRADED = {
    "gigpo": "GiGPO",
    "salt": "GiGPO with shared transitions (SALT)",
    "graphgpo": "GraphGPO",
    "graph_values": "values from the graph",
}
TRAINED = {
    "gigpo": "GiGPO, with or without SALT",
    "graphgpo": "GraphGPO",
    "graph_values": "values from the graph",
    "exact": "exact advantage",
}
DIALS = {  # label of a dial -> world of each of its values
    "horizon: most steps of an episode": {
        "18": "limit=18",
        "36": "base",
        "72": "limit=72",
        "144": "limit=144",
    },
    "recurrence: anchors of a state": {"1": "base", "4": "appearances=4", "16": "appearances=16"},
    "branching: actions": {"5": "base", "10": "actions=10", "40": "actions=40"},
    "noise: share of random moves": {"0": "base", "20%": "slip=0.2", "40%": "slip=0.4"},
}


def make_line(runs: Path, label: str, seeds: int) -> Line:
    """The line of an arm: means over seeds with their t-intervals, in percent.

    The folders of its runs are `runs` followed by "_seed" and the seed.
    """
    curves = []
    for seed in range(seeds):
        lines = Path(f"{runs}_seed{seed}", "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        evaluations = [record for record in records if METRIC in record]
        iterations = [record["step"] for record in evaluations]
        curves.append([100 * record[METRIC] for record in evaluations])
    mean = np.mean(curves, 0)
    margin = t.ppf(0.975, seeds - 1) * np.std(curves, 0, ddof=1) / np.sqrt(seeds)
    return Line(label, np.array(iterations), np.stack([mean, mean - margin, mean + margin], 1))


def draw_figure(name: str, folder: str, seeds: int, labels: Mapping[str, str]) -> None:
    """Writes docs/NAME.png."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    lines = [make_line(RESULTS / folder / arm, label, seeds) for arm, label in labels.items()]
    # The name of a folder may end with the learning rate.
    draw_lines(axes, lines, styles=[STYLE_OF[arm.partition("_lr")[0]] for arm in labels])
    axes.set_xticks(lines[0].x)
    axes.set_xlabel("training iterations")
    axes.set_ylabel("games won, %")
    axes.set_title(TITLE.format(seeds), fontsize=10, loc="left")
    figure.savefig(ROOT / "docs" / f"{name}.png", dpi=130)


def draw_dials(
    name: str,
    unit: str,
    title: str,
    labels: Mapping[str, str],
    gains: Mapping[str, Mapping[str, Any]],
) -> None:
    """Writes docs/NAME.png.

    Args:
      name: Name of the file.
      unit: Label of the vertical axis.
      title: Title.
      labels: Label of each arm.
      gains: Gain of each arm, by world and arm: mean and half the width of its interval.
    """
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots(1, len(DIALS), sharey=True)
    for axis, (label, worlds) in zip(axes, DIALS.items(), strict=True):
        axis.axhline(0, color=STYLE_OF["grpo"][0], linestyle="--", linewidth=1)
        lines = []
        for index, (arm, arm_label) in enumerate(labels.items()):
            estimates = [gains[world][arm] for world in worlds.values()]
            mean = np.array([estimate["mean"] for estimate in estimates])
            margin = np.array([estimate["margin"] for estimate in estimates])
            # One bar beside the next, so that none covers another.
            x = np.arange(len(worlds)) + 0.06 * (index - 1.5)
            lines.append(Line(arm_label, x, np.stack([mean, mean - margin, mean + margin], 1)))
            # `draw_lines` has the bars of the last points in the last plot.
            count = len(x) - (axis is axes[-1])
            bars = (x[:count], (mean - margin)[:count], (mean + margin)[:count])
            axis.vlines(*bars, color=STYLE_OF[arm][0], linewidth=1.5)
        styles = [STYLE_OF[arm] for arm in labels]
        draw_lines(axis, lines, styles=styles, labels=axis is axes[-1])
        axis.set_xlim(-0.3, len(worlds) - 0.6)
        axis.set_xticks(range(len(worlds)), worlds)
        axis.set_xlabel(label)
    axes[0].set_ylabel(unit)
    axes[0].annotate("GRPO", (0.0, 0.0), xytext=(0, -10), textcoords="offset points", fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(ROOT / "docs" / f"{name}.png", dpi=130)


def draw_worlds() -> None:
    """Draws both pictures of the grid worlds."""
    grades = json.loads((RESULTS / "tabular_credit.json").read_text())
    names = {world for worlds in DIALS.values() for world in worlds.values()}
    credit = {
        world: {arm: grades[world]["estimates"][arm]["by row"]["gain"] for arm in GRADED}
        for world in names
    }
    title = "Correlation with the exact advantage: gain over GRPO; 16 seeds, bars: 95% t-intervals"
    draw_dials("tabular_credit", "correlation, less GRPO", title, GRADED, credit)
    runs = {
        world: json.loads((RESULTS / "tabular" / f"{world}.json").read_text()) for world in names
    }
    areas = {
        world: {arm: runs[world][arm]["trained area"]["gain"] for arm in TRAINED} for world in names
    }
    title = "Mean success over training: gain over GRPO; learning rate tuned for each, 16 seeds"
    draw_dials("tabular_learning", "points of success, less GRPO", title, TRAINED, areas)


if __name__ == "__main__":
    for name, (folder, seeds, labels) in FIGURES.items():
        draw_figure(name, folder, seeds, labels)
    draw_worlds()
