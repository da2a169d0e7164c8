"""Draws docs/evidence/forest.png from benchmarks/results/evidence.json, docs/evidence/alfworld_100.png
from the runs in alfworld_pooled, docs/evidence/real_model.png from those in smollm_drawers, and
docs/tabular_credit.png and docs/tabular_learning.png from the files of the grid worlds.

    python -m docs.make_figures

`python -m benchmarks.evidence` writes the first file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.results import RESULTS, find_campaign
from gigpo_jax.tools.compare.figure import STYLES, Line, draw_lines
from gigpo_jax.tools.compare.runs import read_run
from gigpo_jax.tools.compare.statistics import estimate_mean

ROOT = Path(__file__).parents[1]
CURVES = {  # label of each arm's folders below alfworld_pooled/reported
    "grpo_lr1e-4": "GRPO",
    "gigpo_lr1e-4": "GiGPO",
    "repeat_discount_gigpo_lr3e-4": "repeat discount",
    "repeat_discount_graph_values_episode_lr3e-4": "combination",
}
REAL = {  # label and colour of each arm's folders below smollm_drawers
    "gigpo": ("GiGPO", "#0072B2"),
    "grpo": ("GRPO", "#D55E00"),
    "combined": ("combination", "#000000"),
    "random": ("GiGPO from random weights", "#999999"),
}
FOREST = {  # colour of each arm
    "GiGPO": "#0072B2",
    "repeat discount": "#D55E00",
    "`graph_values`": "#009E73",
    "combination": "#000000",
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


def draw_curves() -> None:
    """Writes docs/evidence/alfworld_100.png: mean curves with crossed 95% intervals."""
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axes = figure.subplots()
    lines = []
    for name, label in CURVES.items():
        folders = sorted((find_campaign("alfworld_pooled") / "reported").glob(f"{name}_seed[0-9]"))
        runs = [read_run(folder) for folder in folders]
        won = np.stack([run.won for run in runs])
        estimates = [estimate_mean(won[:, index]) for index in range(won.shape[1])]
        lines.append(Line(label, runs[0].iterations, 100 * np.array(estimates)))
    styles = [STYLE_OF[name.partition("_lr")[0]] for name in CURVES]
    for line, (colour, _) in zip(lines, styles, strict=True):
        axes.fill_between(line.x, *line.estimates[:, 1:].T, color=colour, alpha=0.1, linewidth=0)
    draw_lines(axes, lines, styles=styles)
    axes.set_xticks(lines[0].x)
    axes.set_xlabel("training iterations (64 episodes each)")
    axes.set_ylabel("games won in unseen rooms, %")
    figure.savefig(ROOT / "docs/evidence/alfworld_100.png", dpi=130)


def draw_real_model(runs: Path, target: Path) -> None:
    """Draws every run: success of each iteration's 32 episodes, and of the panel with intervals.

    Args:
      runs: Folders ARM_seedN with metrics.jsonl.
      target: PNG file.
    """
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axes = figure.subplots()
    for arm, (label, colour) in REAL.items():
        for number, path in enumerate(sorted(runs.glob(f"{arm}_seed*/metrics.jsonl"))):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            drawn = [line for line in lines if "episode/success_rate" in line]
            axes.plot(
                [line["step"] for line in drawn],
                [100 * line["episode/success_rate"] for line in drawn],
                color=colour,
                linewidth=1.5,
                linestyle=("-", "--", ":")[number],
                label=f"{label}, seed {path.parent.name[-1]}",
            )
            panel = [line for line in lines if "val/sampled/success_rate" in line]
            rates, low, high = (
                100 * np.array([line[f"val/sampled/success_{key}"] for line in panel])
                for key in ("rate", "low", "high")
            )
            axes.errorbar(
                [line["step"] + 0.12 * number for line in panel],
                rates,
                (rates - low, high - rates),
                fmt="o",
                color=colour,
                capsize=3,
            )
    axes.set(
        xlabel="iteration (32 episodes each)",
        ylabel="success %",
        ylim=(-3, 103),
        title="SmolLM2-135M-Instruct finds a treasure in four drawers within eight actions",
    )
    axes.title.set_fontsize(10)
    axes.grid(alpha=0.3)
    axes.legend(
        fontsize=8,
        loc="lower right",
        title="lines: training, dots: 64 test games (95%)",
        title_fontsize=8,
    )
    figure.savefig(target, dpi=130)


def draw_forest() -> None:
    """Writes docs/evidence/forest.png: all paired differences and their means."""
    differences = json.loads((RESULTS / "evidence.json").read_text())
    rows = [row for row in differences if row["base"] == "GRPO"]
    rows.sort(key=lambda row: list(FOREST).index(row["arm"]))
    figure = Figure(figsize=(10, 8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, base in zip(panels, ("GRPO", "GiGPO"), strict=True):
        by_name = {
            (row["experiment"], row["arm"]): row for row in differences if row["base"] == base
        }
        panel.axvline(0, color="#555555", linewidth=1)
        for height, row in enumerate(rows):
            difference = by_name.get((row["experiment"], row["arm"]))
            if difference is None:
                continue
            mean, low, high = (100 * value for value in difference["interval"])
            is_mean = row["experiment"] == "mean"
            colour = FOREST[row["arm"]]
            panel.hlines(height, low, high, color=colour, linewidth=4 if is_mean else 1.5)
            panel.plot(mean, height, "D" if is_mean else "o", color=colour, markersize=6)
        panel.set_xlim(-15, 15)  # one lost run makes intervals of BabyAI wider than that
        panel.set_xlabel(f"final success minus {base}, points (95%)")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="x", alpha=0.3)
    labels = []
    for row in rows:
        arm = row["arm"].strip("`")
        name = f"mean of {row['seeds']}" if row["experiment"] == "mean" else row["experiment"]
        labels.append(f"{arm}: {name}")
    panels[0].set_yticks(range(len(rows)), labels)
    panels[0].invert_yaxis()
    figure.savefig(ROOT / "docs/evidence/forest.png", dpi=110)


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
    draw_dials(
        "tabular_credit",
        "correlation with the exact\nadvantage, minus GRPO's",
        title,
        GRADED,
        credit,
    )
    runs = {
        world: json.loads((find_campaign("tabular") / f"{world}.json").read_text())
        for world in names
    }
    areas = {
        world: {arm: runs[world][arm]["trained area"]["gain"] for arm in TRAINED} for world in names
    }
    title = "Mean success over training: gain over GRPO; learning rate tuned for each, 16 seeds"
    unit = "mean success over training of\ntables of logits, minus GRPO's (points)"
    draw_dials("tabular_learning", unit, title, TRAINED, areas)


if __name__ == "__main__":
    draw_forest()
    draw_curves()
    draw_real_model(find_campaign("smollm_drawers"), ROOT / "docs/evidence/real_model.png")
    draw_worlds()
