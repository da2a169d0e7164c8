"""Trains tabular policies with and without forks; benchmarks/protocols/fork_learning.md.

    python -m benchmarks.tabular_fork_learning --out benchmarks/results/tabular_fork_learning.json

In every iteration each task has `FIRST` whole episodes. What follows costs as many steps again:
further whole episodes, or forks that begin in states of the first ones. All arms learn from all
rows with `graph_values`; the learning rate of each arm is tuned as in
benchmarks/tabular_learning.py.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.tabular_credit import BATCHES
from benchmarks.tabular_forks import CHOICES, FIRST, choose_starts, keep_budget
from benchmarks.tabular_learning import TABLE_RATES, TUNING_SEEDS, update
from benchmarks.tabular_worlds import (
    ARMS,
    FEATURES,
    WORLDS,
    Rows,
    Tasks,
    World,
    count_tasks,
    dial_values,
    find_skill,
    flatten_rows,
    make_columns,
    make_estimator,
    make_tasks,
    measure_success,
    play,
    stack_blocks,
    start_episodes,
    summarise,
)
from gigpo_jax.rl.types import StepColumns

ITERATIONS = 10
NAMES = ("base", "limit=72")
ESTIMATOR = make_estimator(*ARMS["graph_values"])


def play_iteration(
    world: World, choice: str, tasks: Tasks, logits: Array, keys: Array, seeds: Sequence[int]
) -> tuple[Rows, StepColumns]:
    """The rows of an iteration that the budget pays for.

    Args:
      world: World of the tasks.
      choice: One of `CHOICES`.
      tasks: Tasks of blocks.
      logits: [B, M, S, A], logits of the policy.
      keys: [B] keys.
      seeds: Seed of each block, for uniform choices.
    """
    dials = dial_values(world)
    surprise = -np.asarray(jax.nn.log_softmax(logits))
    later_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, 1)
    first, _ = play(keys, tasks, logits, dials, start_episodes(tasks, FIRST), limit=world.limit)
    starts = choose_starts(choice, tasks, first, surprise, seeds)
    later, _ = play(later_keys, tasks, logits, dials, starts, limit=world.limit)
    rows: Rows = jax.tree.map(lambda *parts: jnp.concatenate(parts, 3), first, later)
    first_mask = np.asarray(first.mask)
    # Twice what the first episodes cost: as many whole episodes cost that on average.
    budget = 2.0 * first_mask.sum((1, 2, 3)) / first_mask.shape[2]
    mask = jnp.asarray(keep_budget(rows, budget, FIRST))
    rows = rows._replace(mask=mask, reward=jnp.where(mask, rows.reward, 0.0))
    is_forked = jnp.concatenate([jnp.zeros(first.mask[:, 0].shape, bool), starts.step > 0], 2)
    forked = flatten_rows(jnp.broadcast_to(is_forked[:, None], mask.shape))
    return rows, replace(make_columns(rows), forked=forked)


def train(world: World, choice: str, seeds: Sequence[int], rates: Sequence[float]) -> np.ndarray:
    """Success on the tasks after each iteration, [iterations, B]; a block has a seed and a rate."""
    tasks = stack_blocks([make_tasks(world, seed, count_tasks(world)) for seed in seeds])
    prior = find_skill(world) * tasks.progress + tasks.noise
    keys = jax.vmap(jax.random.key)(jnp.array(seeds))
    table = jnp.zeros_like(prior)
    weights = jnp.zeros((len(seeds), FEATURES))
    factors = jnp.array([1.0, 0.0])  # tables alone
    curve = []
    for iteration in range(ITERATIONS):
        iteration_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, iteration)
        rows, columns = play_iteration(world, choice, tasks, prior + table, iteration_keys, seeds)
        table, weights, _ = update(
            table,
            weights,
            prior,
            tasks.feature,
            rows,
            ESTIMATOR(columns).total,
            jnp.array(rates)[:, None] * factors,
            entropy_coef=0.0,
        )
        success = measure_success(tasks, prior + table, jnp.float32(world.slip), limit=world.limit)
        curve.append(success.mean(1))
    return np.stack(curve)


def train_arm(world: World, choice: str) -> dict[str, Any]:
    """Area and final success of an arm at its best learning rate, by seed."""
    areas = np.mean(
        [
            train(world, choice, [seed] * len(TABLE_RATES), TABLE_RATES).mean(0)
            for seed in TUNING_SEEDS
        ],
        axis=0,
    )
    rate = TABLE_RATES[int(areas.argmax())]
    curves = [train(world, choice, seeds, [rate] * len(seeds)) for seeds in BATCHES]
    curve = 100 * np.concatenate(curves, axis=1)
    return {
        "rate": rate,
        "tuning areas": (100 * areas).tolist(),
        "area": summarise(curve.mean(0)),
        "final": summarise(curve[-1]),
    }


def main() -> None:
    """Writes the outcomes and prints them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/tabular_fork_learning.json"))
    parser.add_argument("--worlds", nargs="+", default=NAMES, choices=WORLDS, metavar="NAME")
    arguments = parser.parse_args()
    results = {}
    for name in arguments.worlds:
        print(name, flush=True)
        arms = {choice: train_arm(WORLDS[name], choice) for choice in CHOICES}
        for choice, outcomes in arms.items():
            cells = []
            for outcome in ("area", "final"):
                difference = np.subtract(
                    outcomes[outcome]["by_seed"], arms["whole"][outcome]["by_seed"]
                )
                gain = outcomes[outcome]["gain"] = summarise(difference)
                cells.append(
                    f"{outcome} {outcomes[outcome]['mean']:.1f}"
                    f" ({gain['mean']:+.1f} +- {gain['margin']:.1f})"
                )
            print(f"  {choice:12} rate {outcomes['rate']:g}  " + "  ".join(cells), flush=True)
        results[name] = arms
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
