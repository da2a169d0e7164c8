"""Grades estimates of advantages in grid worlds with dials, whose true advantages are known.

    python -m benchmarks.tabular_credit --out benchmarks/results/tabular_credit.json

The policy is that before training. The grade of an estimate is Pearson's correlation with
Q(s, a) - V(s), with the steps that are left, over all steps of a seed. Intervals are 95%
t-intervals over seeds. benchmarks/protocols/tabular.md describes the worlds.

The grade "by action" averages estimate and truth over the rows with the same state and action
first. The gradient of a tabular policy is a sum over these rows, so it sees nothing but their mean.
This grade was added after the first runs of benchmarks/tabular_learning.py were seen.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.tabular_worlds import (
    ARMS,
    PAY,
    POOLED,
    WORLDS,
    World,
    count_tasks,
    dial_values,
    find_skill,
    flatten_rows,
    make_columns,
    make_estimator,
    make_tasks,
    play,
    stack_blocks,
    start_episodes,
    summarise,
)
from gigpo_jax.rl.advantages import measure_credit

BATCHES = (range(8), range(8, 16))  # seeds
ESTIMATES: dict[str, tuple[str, dict[str, Any]]] = ARMS | {
    "graph_values plain": ("graph_values", {}),
    "graph_values plain lam=0.5": ("graph_values", {"lam": 0.5}),
    "graph_values plain episode=1": ("graph_values", {"episode": 1.0}),
    "graph_values shrinkage=0.25": ("graph_values", {"shrinkage": 0.25}),
    "graph_values shrinkage=1": ("graph_values", {"shrinkage": 1.0}),
    "graph_values truncation=ignore": ("graph_values", {"truncation": "ignore"}),
    "graph_values gamma=1": ("graph_values", POOLED | {"gamma": 1.0}),
}
ESTIMATORS = {label: make_estimator(*estimate) for label, estimate in ESTIMATES.items()}


def correlate(estimate: np.ndarray, truth: np.ndarray, mask: np.ndarray) -> list[float]:
    """The correlation over the rows of each seed."""
    blocks = zip(*(np.split(array, len(BATCHES[0])) for array in (estimate, truth, mask)))
    # An estimate of 0 everywhere says nothing.
    return [
        float(np.corrcoef(values[rows], exact[rows])[0, 1]) if values[rows].any() else 0.0
        for values, exact, rows in blocks
    ]


def average_actions(values: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Means over the rows of each row's state and action, [N]."""
    return (np.bincount(action, values) / np.maximum(np.bincount(action), 1))[action]


def grade_world(world: World) -> dict[str, Any]:
    """Correlations of all estimates by seed, and the recurrence of states."""
    skill = find_skill(world)
    by_row: dict[str, list[float]] = {label: [] for label in ESTIMATES}
    by_action: dict[str, list[float]] = {label: [] for label in ESTIMATES}
    recurrence = []
    paid = []
    for seeds in BATCHES:
        tasks = stack_blocks([make_tasks(world, seed, count_tasks(world)) for seed in seeds])
        logits = skill * tasks.progress + tasks.noise
        keys = jax.vmap(jax.random.key)(jnp.array(seeds))
        starts = start_episodes(tasks)
        rows, exact = play(keys, tasks, logits, dial_values(world), starts, limit=world.limit)
        columns = make_columns(rows)
        mask = np.asarray(columns.mask)
        truth = np.asarray(flatten_rows(exact), np.float64)
        # Masked rows have a number of their own.
        names = np.stack([columns.group, columns.anchor[:, 0], columns.action[:, 1], mask])
        _, action = np.unique(names, axis=1, return_inverse=True)
        for label, estimator in ESTIMATORS.items():
            advantages = estimator(columns)
            estimate = np.asarray(advantages.total, np.float64)
            by_row[label] += correlate(estimate, truth, mask)
            means = [average_actions(values, action) for values in (estimate, truth)]
            by_action[label] += correlate(means[0], means[1], mask)
        recurrence.append(1 - float(measure_credit(advantages, columns)["singleton_share"]))
        paid.append(float(columns.reward.sum()) / PAY * world.limit / len(mask))
    estimates = {
        label: {"by row": by_row[label], "by action": by_action[label]} for label in ESTIMATES
    }
    grades = {
        label: {
            name: summarise(values)
            | {"gain": summarise(np.subtract(values, estimates["grpo"][name]))}
            for name, values in correlations.items()
        }
        for label, correlations in estimates.items()
    }
    return {"recurrence": np.mean(recurrence), "paid": np.mean(paid), "estimates": grades}


def main() -> None:
    """Writes the grades and prints the correlations."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/tabular_credit.json"))
    out = parser.parse_args().out
    results = {}
    for name, world in WORLDS.items():
        results[name] = grade_world(world)
        print(f"{name}: {100 * results[name]['recurrence']:.0f}% of the steps recur", flush=True)
        for label, grades in results[name]["estimates"].items():
            cells = [
                f"{grade_name} {grade['mean']:.2f} ({grade['gain']['mean']:+.2f}"
                f" +- {grade['gain']['margin']:.2f})"
                for grade_name, grade in grades.items()
            ]
            print(f"  {label:34}" + "   ".join(cells), flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
