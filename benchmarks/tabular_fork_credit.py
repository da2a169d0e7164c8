"""Grades credit from forks in grid worlds at equal numbers of steps; benchmarks/protocols/fork_credit.md.

    python -m benchmarks.tabular_fork_credit --out benchmarks/results/tabular_fork_credit.json

Each task has 1 or 4 whole episodes and then forks, as many as the steps of 8 whole episodes pay
for. The grade is the correlation of an estimate with the exact advantages over the steps of the
whole episodes, which all arms share; a step that an algorithm keeps out of the loss has 0.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.tabular_credit import BATCHES, correlate
from benchmarks.tabular_forks import WORLD_NAMES, choose_starts, keep_budget
from benchmarks.tabular_worlds import (
    ARMS,
    EPISODES,
    WORLDS,
    Starts,
    World,
    count_tasks,
    dial_values,
    find_skill,
    flatten_rows,
    hash_histories,
    make_columns,
    make_estimator,
    make_tasks,
    play,
    stack_blocks,
    start_episodes,
    summarise,
)

WHOLE = (1, 4)  # whole episodes of each task
# Arm: how what follows is chosen, and the estimator.
FORKED: dict[str, tuple[str, tuple[str, dict[str, Any]]]] = {
    "grpo": ("whole", ARMS["grpo"]),
    "graph_values": ("whole", ARMS["graph_values"]),
    "graph_values, uniform": ("uniform", ARMS["graph_values"]),
    "graph_values, entropy": ("entropy", ARMS["graph_values"]),
    "vineppo": ("uniform", ("vineppo", {})),
    "carl": ("entropy", ("carl", {})),
}
_SECOND = 1  # number of the keys of what follows the first episodes


def grade_world(world: World, whole: int) -> dict[str, Any]:
    """Correlations, and steps in the loss, by arm."""
    skill = find_skill(world)
    dials = dial_values(world)
    grades: dict[str, dict[str, list[float]]] = {
        arm: {"correlation": [], "steps in the loss": [], "steps": []} for arm in FORKED
    }
    for seeds in BATCHES:
        tasks = stack_blocks([make_tasks(world, seed, count_tasks(world)) for seed in seeds])
        logits = skill * tasks.progress + tasks.noise
        surprise = -np.asarray(jax.nn.log_softmax(logits))
        keys = jax.vmap(jax.random.key)(jnp.array(seeds))
        later_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, _SECOND)
        first_starts = start_episodes(tasks, whole)
        first = play(keys, tasks, logits, dials, first_starts, limit=world.limit)
        budget = np.zeros(len(seeds))
        for arm, (choice, estimator) in FORKED.items():
            later_starts = choose_starts(choice, tasks, first[0], surprise, seeds)
            later = play(later_keys, tasks, logits, dials, later_starts, limit=world.limit)
            rows, truth = jax.tree.map(lambda *parts: jnp.concatenate(parts, 3), first, later)
            starts = Starts(
                *(jnp.concatenate(parts, 2) for parts in zip(first_starts, later_starts))
            )
            episode = np.arange(starts.step.shape[2])
            if choice == "whole":
                # The first arms are whole: their steps are the budget of all.
                mask = np.asarray(rows.mask) & (episode < EPISODES)
                budget = mask.sum((1, 2, 3)) / mask.shape[2]
            else:
                mask = keep_budget(rows, budget, whole)
            rows = rows._replace(mask=jnp.asarray(mask), reward=jnp.where(mask, rows.reward, 0.0))
            past = flatten_rows(hash_histories(rows, starts))
            is_forked = jnp.broadcast_to((starts.step > 0)[:, None], mask.shape)
            columns = replace(
                make_columns(rows),
                forked=flatten_rows(is_forked),
                past=jnp.stack([past, past], 1),
            )
            result = make_estimator(*estimator)(columns)
            learned = columns.mask if result.learned is None else columns.mask & result.learned
            estimate = np.where(learned, np.asarray(result.total, np.float64), 0.0)
            is_first = np.broadcast_to(episode < whole, mask.shape) & mask
            graded = np.asarray(flatten_rows(jnp.asarray(is_first)))
            exact = np.asarray(flatten_rows(truth), np.float64)
            grades[arm]["correlation"] += correlate(estimate, exact, graded)
            blocks = np.split(np.asarray(learned), len(seeds))
            tasks_of_block = mask.shape[2]
            grades[arm]["steps in the loss"] += [float(x.sum()) / tasks_of_block for x in blocks]
            grades[arm]["steps"] += list(mask.sum((1, 2, 3)) / tasks_of_block)
    best = grades["graph_values"]["correlation"]
    for outcomes in grades.values():
        outcomes["less graph_values"] = list(np.subtract(outcomes["correlation"], best))
    return {
        arm: {name: summarise(values) for name, values in outcomes.items()}
        for arm, outcomes in grades.items()
    }


def main() -> None:
    """Writes the grades and prints them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", nargs="+", default=WORLD_NAMES, choices=WORLDS, metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("runs/tabular_fork_credit.json"))
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for name in arguments.worlds:
        for whole in WHOLE:
            key = f"{name}, {whole} whole"
            results[key] = grade_world(WORLDS[name], whole)
            print(key, flush=True)
            for arm, outcomes in results[key].items():
                cells = [
                    f"{label} {outcome['mean']:.3f} +- {outcome['margin']:.3f}"
                    for label, outcome in outcomes.items()
                ]
                print(f"  {arm:24} " + "  ".join(cells), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
