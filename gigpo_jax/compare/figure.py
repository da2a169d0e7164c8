"""Curves of a comparison: success against iterations, environment steps and wall time. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gigpo_jax.compare.runs import Arm
from gigpo_jax.compare.statistics import estimate

# Okabe and Ito's colours, which colour-blind readers tell apart; the line style repeats what the colour says.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")


def draw(arms: Sequence[Arm], folder: Path) -> list[Path]:
    """Writes comparison.png and comparison.svg: means over seeds, with 95% bootstrap bands over seeds and tasks.

    Raises:
      ImportError: matplotlib is not installed.
    """
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(12, 4.8), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for number, arm in enumerate(arms):
        won = arm.won()
        curve = np.array([estimate(won[:, e], draws=1000) for e in range(won.shape[1])]) * 100
        across = {
            "iterations": arm.runs[0].iterations,
            "environment steps (thousands)": np.mean([run.env_steps for run in arm.runs], 0) / 1e3,
            "wall time (minutes)": np.mean([run.seconds for run in arm.runs], 0) / 60,
        }
        how = {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[number % len(STYLES)]}
        for axis, (name, x) in zip(axes, across.items(), strict=True):
            axis.plot(x, curve[:, 0], label=f"{arm.label} ({len(arm.runs)})", linewidth=2, **how)
            axis.fill_between(x, curve[:, 1], curve[:, 2], color=how["color"], alpha=0.15, linewidth=0)
            axis.set_xlabel(name)
            axis.grid(alpha=0.3)
    run = arms[0].runs[0]
    axes[0].set_ylabel(f"success on {run.panel[0]} (%), {len(run.tasks)} tasks")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, title="arm (seeds)", frameon=False, loc="outside lower center", ncols=min(len(arms), 3)
    )
    paths = [folder / f"comparison.{kind}" for kind in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=120)
    return paths
