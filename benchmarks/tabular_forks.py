"""Grades forks in grid worlds at equal numbers of steps; benchmarks/protocols/forks.md.

    python -m benchmarks.tabular_forks --out benchmarks/results/tabular_forks.json

Each task has `FIRST` whole episodes. What follows costs as many steps for every arm: `FIRST` further
whole episodes, or forks that begin in states of the first ones. The grade of an arm is the
correlation of an estimate with the exact advantages.
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

from benchmarks.tabular_credit import BATCHES, correlate
from benchmarks.tabular_worlds import (
    ARMS,
    COMMON,
    WORLDS,
    Rows,
    Starts,
    Tasks,
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
from gigpo_jax.rollout.fork_choices import (
    Visits,
    choose_surprising,
    choose_uncertain,
    choose_uniform,
)

FIRST = 4  # whole episodes of each task before forks
MOST = 16  # episodes that follow; those beyond the budget are masked
CHOICES = ("whole", "uniform", "entropy", "uncertainty")
NAMES = ("gigpo", "graph_values")
WORLD_NAMES = ("base", "appearances=4", "actions=40", "slip=0.2", "limit=72")
_SECOND = 1  # number of the keys of what follows the first episodes


def choose_starts(
    choice: str, tasks: Tasks, rows: Rows, surprise: np.ndarray, seeds: Sequence[int]
) -> Starts:
    """The starts of what follows the first episodes.

    Args:
      choice: One of `CHOICES`.
      tasks: Tasks of blocks.
      rows: Rows of the first episodes, [B, T, M, E].
      surprise: [B, M, S, A], negative log-probabilities of actions in nats.
      seeds: Seed of each block.
    """
    starts = start_episodes(tasks, MOST)
    if choice == "whole":
        return starts
    state = np.array(starts.state)
    step = np.array(starts.step)
    past = np.array(starts.past)
    histories = np.asarray(hash_histories(rows, start_episodes(tasks, rows.state.shape[3])))
    for block, seed in enumerate(seeds):
        for task in range(state.shape[1]):
            # [T, E] -> rows in the order of episodes and steps.
            fields = [np.asarray(field[block, :, task]).T for field in rows]
            states, actions, appearances, rewards, mask = fields
            episode, number = np.nonzero(mask)
            position = states[mask]
            _, node = np.unique(
                np.stack([position, appearances[mask]]), axis=1, return_inverse=True
            )
            visits = Visits(
                state=node.reshape(-1),
                episode=episode,
                step=number,
                reward=rewards[mask],
                surprise=surprise[block, task, position, actions[mask]],
            )
            if choice == "uniform":
                chosen = choose_uniform(visits, MOST, np.random.default_rng((seed, task)))
            elif choice == "entropy":
                chosen = choose_surprising(visits, MOST)
            else:
                chosen = choose_uncertain(visits, MOST, COMMON["gamma"])
            state[block, task] = position[chosen]
            step[block, task] = number[chosen]
            past[block, task] = histories[block, :, task].T[mask][chosen]
    return Starts(jnp.asarray(state), jnp.asarray(step), jnp.asarray(past))


def keep_budget(rows: Rows, budget: np.ndarray, first: int) -> np.ndarray:
    """The mask of rows that the budget pays for, [B, T, M, E].

    An episode is kept if at least half of it is within the budget.

    Args:
      rows: Rows of the first episodes and of what follows.
      budget: [B], mean steps of a task of each block.
      first: Number of whole episodes, which are always kept.
    """
    mask = np.asarray(rows.mask)
    length = mask.sum(1)
    middle = length.cumsum(2) - length / 2
    # The budget is one of the block: a task with short episodes may have more of them.
    is_kept = middle <= budget[:, None, None]
    is_kept[:, :, :first] = True
    return mask & is_kept[:, None]


def grade_world(world: World) -> dict[str, Any]:
    """Correlations by choice, estimator and rows, and the steps of each choice."""
    skill = find_skill(world)
    dials = dial_values(world)
    estimators = {name: make_estimator(*ARMS[name]) for name in NAMES}
    grades: dict[str, dict[str, list[float]]] = {choice: {} for choice in CHOICES}

    def add(choice: str, name: str, values: Sequence[float] | np.ndarray) -> None:
        grades[choice].setdefault(name, []).extend(map(float, values))

    for seeds in BATCHES:
        tasks = stack_blocks([make_tasks(world, seed, count_tasks(world)) for seed in seeds])
        logits = skill * tasks.progress + tasks.noise
        surprise = -np.asarray(jax.nn.log_softmax(logits))
        keys = jax.vmap(jax.random.key)(jnp.array(seeds))
        later_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, _SECOND)
        first = play(keys, tasks, logits, dials, start_episodes(tasks, FIRST), limit=world.limit)
        budget = np.zeros(len(seeds))
        for choice in CHOICES:
            starts = choose_starts(choice, tasks, first[0], surprise, seeds)
            later = play(later_keys, tasks, logits, dials, starts, limit=world.limit)
            rows, truth = jax.tree.map(lambda *parts: jnp.concatenate(parts, 3), first, later)
            if choice == "whole":
                # `CHOICES` begins with it: its steps are the budget of all.
                mask = np.asarray(rows.mask) & (np.arange(FIRST + MOST) < 2 * FIRST)
                budget = mask.sum((1, 2, 3)) / mask.shape[2]
            else:
                mask = keep_budget(rows, budget, FIRST)
            is_forked = jnp.concatenate(
                [jnp.zeros_like(first[0].mask[:, 0], bool), starts.step > 0], 2
            )
            columns = make_columns(
                rows._replace(mask=jnp.asarray(mask), reward=jnp.where(mask, rows.reward, 0.0))
            )
            columns = replace(
                columns,
                forked=flatten_rows(jnp.broadcast_to(is_forked[:, None], mask.shape)),
            )
            exact = np.asarray(flatten_rows(truth), np.float64)
            is_first = np.broadcast_to(np.arange(FIRST + MOST) < FIRST, mask.shape)
            selections = {"all rows": mask, "rows of the first episodes": mask & is_first}
            add(choice, "steps", mask.sum((1, 2, 3)) / mask.shape[2])
            add(choice, "episodes", mask.any(1).sum((1, 2)) / mask.shape[2])
            add(choice, "depth", starts.step.mean((1, 2)))
            for name, estimator in estimators.items():
                estimate = np.asarray(estimator(columns).total, np.float64)
                for label, selection in selections.items():
                    selected_rows = np.asarray(flatten_rows(jnp.asarray(selection)))
                    add(choice, f"{name}, {label}", correlate(estimate, exact, selected_rows))
    return {
        choice: {
            name: summarise(values)
            | {"gain": summarise(np.subtract(values, grades["whole"][name]))}
            for name, values in by_name.items()
        }
        for choice, by_name in grades.items()
    }


def main() -> None:
    """Writes the grades and prints them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", nargs="+", default=WORLD_NAMES, choices=WORLDS, metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("runs/tabular_forks.json"))
    arguments = parser.parse_args()
    results = {}
    for name in arguments.worlds:
        results[name] = grade_world(WORLDS[name])
        print(name, flush=True)
        for choice, outcomes in results[name].items():
            cells = [
                f"{label} {outcome['mean']:.3f} ({outcome['gain']['mean']:+.3f}"
                f" +- {outcome['gain']['margin']:.3f})"
                for label, outcome in outcomes.items()
            ]
            print(f"  {choice:12} " + "  ".join(cells), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
