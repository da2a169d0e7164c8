"""Grades variants of `graph_values` in grid worlds with dials, each against `graph_values` itself.

    python -m benchmarks.tabular_variants --out benchmarks/results/tabular_variants.json

The base is `graph_values` with shrinkage=0.25 and truncation=ignore. Grades are as in
benchmarks/tabular_credit.py: correlation with the exact advantage over the steps of a seed. Gains
over the base are paired by seed, with 95% t-intervals. Policies are untrained; for the memory, they
are from iterations 1 and 4 of trainings with the base at several learning rates. At rate 0 the
policy stays, so that earlier values are as good as new ones.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.tabular_credit import BATCHES, average_actions, correlate
from benchmarks.tabular_learning import update
from benchmarks.tabular_worlds import (
    COMMON,
    FEATURES,
    POOLED,
    WORLDS,
    Tasks,
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
from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import order_steps
from gigpo_jax.rl.graph import build_graph, solve_values
from gigpo_jax.rl.types import StepColumns

NAMES = ("base", "limit=144", "appearances=16", "slip=0.4")
GAMMA = COMMON["gamma"]
RATES = (0.0, 32.0, 128.0, 512.0)  # of the trainings whose policies the memory is graded with
DECAYS = (0.1, 0.25, 0.5, 0.75)
GRADED_ITERATIONS = (1, 4)
Estimate = Callable[[StepColumns], Array]


def make_variant(**settings: Any) -> Estimate:
    """`graph_values` with other settings than the base."""
    estimator = make_estimator("graph_values", POOLED | settings)
    return lambda columns: estimator(columns).total


BASE_ESTIMATE = make_variant()
GRPO = make_estimator("grpo", {})
GRAPHGPO = make_estimator("graphgpo", {})


def count_steps_left(columns: StepColumns, limit: int, width: int) -> Array:
    """Anchors with the number of steps left, in bins of a width."""
    left = (limit - 1 - columns.step) // width
    second = columns.anchor[:, 1] * limit + left.astype(jnp.uint32)
    return jnp.stack([columns.anchor[:, 0], second], 1)


def estimate_by_steps(columns: StepColumns, *, limit: int, width: int) -> Array:
    """The base with the number of steps left, in bins, as part of the state."""
    return BASE_ESTIMATE(replace(columns, anchor=count_steps_left(columns, limit, width)))


def join_previous(columns: StepColumns) -> Array:
    """Anchors of the last two states."""
    is_first = (columns.step == 0)[:, None]
    previous = jnp.where(is_first, 0, jnp.roll(columns.anchor, 1, 0))
    second = (columns.anchor[:, 1] * 64 + previous[:, 1]) * 4096 + previous[:, 0]
    return jnp.stack([columns.anchor[:, 0], second], 1)


@partial(jax.jit, static_argnames=("pseudo_visits",))
def compare_return_means(columns: StepColumns, *, pseudo_visits: float) -> Array:
    """Mean return of a state and action less the mean return of the state, [N].

    The first mean has pseudo-visits with the second.
    """
    steps = order_steps(columns)
    returns, _ = segments.suffix_sums(steps.reward, steps.step, steps.trajectory, GAMMA)
    rows = len(returns)
    edge = segments.number_segments(
        steps.valid, steps.anchor, columns.action[steps.order, 0], columns.action[steps.order, 1]
    )

    def average(segment: Array, count: float, prior: Array) -> Array:
        node = jnp.minimum(segment, rows - 1)
        total = jax.ops.segment_sum(jnp.where(steps.valid, returns, 0.0), segment, rows)[node]
        visits = segments.count_members(segment, steps.valid)
        return (total + count * prior) / jnp.maximum(visits + count, 1e-6)

    value = average(steps.anchor, 0.0, jnp.zeros(rows))
    return steps.restore(jnp.where(steps.valid, average(edge, pseudo_visits, value) - value, 0.0))


@partial(jax.jit, static_argnames=("shrinkage",))
def blend_values(
    columns: StepColumns, prior: Array, weight: Array, shrinkage: float = POOLED["shrinkage"]
) -> tuple[Array, Array]:
    """`graph_values` with further pseudo-visits of each state.

    Args:
      columns: N steps.
      prior: [N] f32, outcome of the pseudo-visits, equal for all rows of a state.
      weight: [N] f32, their number, likewise.
      shrinkage: Number of pseudo-visits with the mean return of the group.

    Returns:
      Advantages and values, [N] each.
    """
    steps = order_steps(columns)
    left_out = columns.truncated[steps.order]
    weight = weight[steps.order]
    graph = build_graph(steps, GAMMA, left_out=left_out, pseudo_visits=shrinkage + weight)
    returns, _ = segments.suffix_sums(steps.reward, steps.step, steps.trajectory, GAMMA)
    total = jax.ops.segment_sum(jnp.where(graph.member, returns, 0.0), steps.group, len(returns))
    count = jnp.maximum(segments.count_members(steps.group, graph.member), 1)
    mean = total[steps.group] / count
    outcome = (shrinkage * mean + weight * prior[steps.order]) / (shrinkage + weight)
    value = solve_values(graph, steps.reward, outcome)
    gae = graph.gae(steps.reward, value, 0.0)
    compared = segments.compare_values(
        gae, gae, steps.group, steps.valid, normalize="mean_std", ddof=1, eps=1e-6
    )
    return steps.restore(compared), steps.restore(value)


def back_off(columns: StepColumns, coarse: Array, visits: float) -> Array:
    """The base, whose pseudo-visits have the values of coarser states.

    Args:
      columns: N steps.
      coarse: [N, 2] u32, anchors of the coarser states.
      visits: Number of pseudo-visits of each state.
    """
    none = jnp.zeros(len(columns.mask))
    _, value = blend_values(replace(columns, anchor=coarse), none, none)
    prior = average_states(columns, value)
    advantage, _ = blend_values(columns, prior, jnp.full(len(none), visits), shrinkage=0.0)
    return advantage


def back_off_to_observations(columns: StepColumns, visits: float) -> Array:
    """Back-off to anchors without the appearance: to what the text of an observation tells."""
    return back_off(columns, columns.anchor.at[:, 1].set(0), visits)


class Player:
    """Episodes of one batch of seeds in a world, with a table of logits that may be trained."""

    def __init__(self, world: World, seeds: range) -> None:
        """Draws the tasks."""
        self.world = world
        blocks = [make_tasks(world, seed, count_tasks(world)) for seed in seeds]
        self.tasks: Tasks = stack_blocks(blocks)
        self.prior = find_skill(world) * self.tasks.progress + self.tasks.noise
        self.table = jnp.zeros_like(self.prior)
        self.keys = jax.vmap(jax.random.key)(jnp.array(seeds))

    def play(self, iteration: int | None) -> tuple[Any, StepColumns, Array]:
        """Rows, their columns, and exact advantages [N].

        With None the episodes are the ones of benchmarks/tabular_credit.py.
        """
        keys = self.keys
        if iteration is not None:
            keys = jax.vmap(jax.random.fold_in, (0, None))(keys, iteration)
        dials = dial_values(self.world)
        starts = start_episodes(self.tasks)
        logits = self.prior + self.table
        rows, exact = play(keys, self.tasks, logits, dials, starts, limit=self.world.limit)
        return rows, make_columns(rows), flatten_rows(exact)

    def train(self, rows: Any, advantage: Array, rate: float) -> None:
        """One update."""
        blocks = len(self.keys)
        self.table, _, _ = update(
            self.table,
            jnp.zeros((blocks, FEATURES)),
            self.prior,
            self.tasks.feature,
            rows,
            advantage,
            jnp.full((blocks, 2), rate),
            entropy_coef=0.0,
        )


def fit_critic(player: Player) -> Array:
    """Values [B, M, S, L] of a linear critic after one earlier iteration, by steps left.

    It learns returns of all tasks of a block from distance and direction of the goal and from the
    steps left, as a text critic could from words.
    """
    _, columns, _ = player.play(1_000)
    returns = compute_returns(columns)
    world = player.world
    features = _describe_states(player)
    blocks, tasks, states, _ = features.shape
    state = np.asarray(columns.anchor[:, 0]).astype(int) - 1
    group = np.asarray(columns.group)
    left = world.limit - 1 - np.asarray(columns.step)
    mask = np.asarray(columns.mask)
    values = np.zeros((blocks, tasks, states, world.limit))
    for block in range(blocks):
        rows = mask & (group // tasks == block)
        inputs = _add_steps(features[block, group[rows] % tasks, state[rows]], left[rows], world)
        ridge = inputs.T @ inputs + np.eye(inputs.shape[1])
        weights = np.linalg.solve(ridge, inputs.T @ np.asarray(returns)[rows])
        for number in range(world.limit):
            flat = features[block].reshape(tasks * states, -1)
            inputs = _add_steps(flat, np.full(len(flat), number), world)
            values[block, :, :, number] = (inputs @ weights).reshape(tasks, states)
    return jnp.asarray(values, jnp.float32)


def _describe_states(player: Player) -> np.ndarray:
    """Features of states without the steps left, [B, M, S, F]."""
    width = player.world.width
    goal = np.asarray(player.tasks.goal)[..., None]
    x, y = np.divmod(np.arange(width * width), width)
    dx = np.abs(x - goal // width)
    dy = np.abs(y - goal % width)
    distance = np.eye(2 * width)[dx + dy]
    return np.concatenate([distance, np.eye(width)[dx], np.eye(width)[dy]], -1)


def _add_steps(features: np.ndarray, left: np.ndarray, world: World) -> np.ndarray:
    """Features with the share of steps left, and their product with it."""
    share = (left / world.limit)[:, None]
    return np.concatenate([features, features * share], 1)


def list_variants(world: World) -> dict[str, Estimate]:
    """The estimates that need the columns alone, by label."""
    return {
        "base": BASE_ESTIMATE,
        **{f"lam={lam:g}": make_variant(lam=lam) for lam in (0.2, 0.5, 0.8, 1.0)},
        **{
            f"return means, {count:g} pseudo-visits": partial(
                compare_return_means, pseudo_visits=count
            )
            for count in (0.0, 2.0)
        },
        **{
            f"steps left, bins of {width}": partial(
                estimate_by_steps, limit=world.limit, width=width
            )
            for width in (1, 4, 12)
        },
        "steps left, bins of 4, back-off": lambda columns: back_off(
            replace(columns, anchor=count_steps_left(columns, world.limit, 4)), columns.anchor, 1.0
        ),
        "last two states, back-off": lambda columns: back_off(
            replace(columns, anchor=join_previous(columns)), columns.anchor, 1.0
        ),
        **{
            f"value of the observation as prior, {count:g} visits": partial(
                back_off_to_observations, visits=count
            )
            for count in (0.25, 1.0, 4.0)
        },
    }


def grade_fresh(world: World) -> dict[str, list[float]]:
    """Correlations by seed of all variants that need no training."""
    variants = list_variants(world)
    grades: dict[str, list[float]] = {}

    def add(label: str, estimate: Array, truth: np.ndarray, mask: np.ndarray) -> None:
        values = np.asarray(estimate, np.float64)
        grades.setdefault(label, []).extend(correlate(values, truth, mask))

    for seeds in BATCHES:
        player = Player(world, seeds)
        _, columns, exact = player.play(None)
        truth = np.asarray(exact, np.float64)
        mask = np.asarray(columns.mask)
        for label, estimate in variants.items():
            add(label, estimate(columns), truth, mask)
        names = np.stack([columns.group, *columns.anchor.T, columns.action[:, 1], mask])
        _, action = np.unique(names, axis=1, return_inverse=True)
        base = np.asarray(BASE_ESTIMATE(columns), np.float64)
        add("action means", jnp.asarray(average_actions(base, action)), truth, mask)
        own_returns = average_states(columns, compute_returns(columns))
        for count in (0.25, 1.0, 4.0):
            weight = jnp.full(len(mask), count)
            # In place of the group's mean return, not beside it.
            estimate, _ = blend_values(columns, own_returns, weight, shrinkage=0.0)
            add(f"own returns as prior, {count:g} visits", estimate, truth, mask)
        critic = fit_critic(player)
        blocks, tasks = critic.shape[:2]
        group = columns.group
        state = columns.anchor[:, 0].astype(jnp.int32) - 1
        left = world.limit - 1 - columns.step
        by_row = critic[group // tasks % blocks, group % tasks, state, left]
        prior = average_states(columns, by_row)
        for count in (0.25, 1.0, 4.0):
            weight = jnp.full(len(mask), count)
            estimate, _ = blend_values(columns, prior, weight)
            add(f"critic as prior, {count:g} visits", estimate, truth, mask)
    return grades


@jax.jit
def compute_returns(columns: StepColumns) -> Array:
    """Discounted returns from each step on, [N]."""
    steps = order_steps(columns)
    returns, _ = segments.suffix_sums(steps.reward, steps.step, steps.trajectory, GAMMA)
    return steps.restore(returns)


@jax.jit
def average_states(columns: StepColumns, values: Array) -> Array:
    """Means over the rows of each state, [N]."""
    steps = order_steps(columns)
    rows = len(values)
    total = jax.ops.segment_sum(
        jnp.where(steps.valid, values[steps.order], 0.0), steps.anchor, rows
    )
    count = jnp.maximum(segments.count_members(steps.anchor, steps.valid), 1)
    return steps.restore(total[jnp.minimum(steps.anchor, rows - 1)] / count)


class Memory:
    """Values of the states of every task over iterations.

    The values of an iteration are the pseudo-visits of the next one, whose number falls by `decay`.
    """

    def __init__(self, player: Player, decay: float) -> None:
        """Knows nothing yet."""
        world = player.world
        shape = (len(player.keys) * count_tasks(world), world.width**2 + 1, world.appearances)
        self.decay = decay
        self.value = jnp.zeros(shape)
        self.weight = jnp.zeros(shape)

    def estimate(self, columns: StepColumns) -> Array:
        """Advantages [N]; learns the values."""
        index = (columns.group, columns.anchor[:, 0], columns.anchor[:, 1])
        advantage, value = blend_values(columns, self.value[index], self.weight[index])
        mask = columns.mask
        # Rows of a state have equal values; masked rows stand at the state 0, which is none.
        index = (columns.group, jnp.where(mask, index[1], 0), index[2])
        self.value = self.value.at[index].set(jnp.where(mask, value, 0.0))
        counts = columns.mask & ~columns.truncated
        visits = jnp.zeros_like(self.weight).at[index].add(counts.astype(jnp.float32))
        self.weight = self.decay * (self.weight + visits)
        return advantage


class Edges:
    """The graphs of all tasks, joined over iterations: TIGPO's memory (arXiv 2609.03383).

    Unlike values, shortest distances to success do not depend on the policy.
    """

    def __init__(self, player: Player) -> None:
        """Knows no edge yet."""
        world = player.world
        self.appearances = world.appearances
        # The node 0 is success.
        nodes = (world.width**2 + 1) * world.appearances
        self.known = np.zeros((len(player.keys) * count_tasks(world), nodes, nodes), bool)

    def estimate(self, columns: StepColumns) -> Array:
        """Advantages of `graphgpo` with the distances of all iterations, [N]; learns the edges."""
        mask = np.asarray(columns.mask)
        group = np.asarray(columns.group)
        node = self._number(columns.anchor)
        next_node = self._number(columns.next_anchor)
        is_last = ~np.asarray(columns.next_anchor).any(1)
        is_win = mask & is_last & np.asarray(columns.won)
        leads_on = mask & (~is_last | is_win)
        next_node = np.where(is_last, 0, next_node)
        self.known[group[leads_on], node[leads_on], next_node[leads_on]] = True
        distance = self._find_distances()
        farthest = np.max(distance, 1, initial=0.0, where=np.isfinite(distance))
        next_distance = np.minimum(distance[group, next_node], farthest[group] + 1)
        next_distance = np.where(is_last & ~is_win, farthest[group] + 1, next_distance)
        has_success = np.any(self.known[:, :, 0], axis=1)[group]
        return compare_distances(columns, jnp.asarray(next_distance), jnp.asarray(has_success))

    def _number(self, anchor: Array) -> np.ndarray:
        lanes = np.asarray(anchor).astype(int)
        return lanes[:, 0] * self.appearances + lanes[:, 1]

    def _find_distances(self) -> np.ndarray:
        tasks, nodes, _ = self.known.shape
        distance = np.full((tasks, nodes), np.inf)
        distance[:, 0] = 0.0
        reached = np.zeros((tasks, nodes), bool)
        reached[:, 0] = True
        frontier = reached.copy()
        for steps in range(1, nodes):
            frontier = (self.known & frontier[:, None]).any(2) & ~reached
            if not frontier.any():
                break
            distance[frontier] = steps
            reached |= frontier
        return distance


@jax.jit
def compare_distances(columns: StepColumns, next_distance: Array, has_success: Array) -> Array:
    """`graphgpo` with given distances of next states, [N]."""
    steps = order_steps(columns)
    worth = 10.0 * jnp.power(0.1, next_distance[steps.order].astype(jnp.float32))
    compared = segments.compare_values(
        worth, worth, steps.anchor, steps.valid, normalize="mean_std", ddof=1, eps=1e-6
    )
    visits = segments.count_members(steps.anchor, steps.valid)
    compared = jnp.where(has_success[steps.order] & (visits > 1), compared, 0.0)
    return steps.restore(compared) + GRPO(columns).total


def grade_memory(world: World, rate: float) -> dict[str, list[float]]:
    """Correlations by seed of values with memory, at several iterations of a training."""
    grades: dict[str, list[float]] = {}
    for seeds in BATCHES:
        player = Player(world, seeds)
        memories: dict[str, Memory | Edges] = {
            f"values of earlier iterations, decay {decay:g}": Memory(player, decay)
            for decay in DECAYS
        }
        memories["graphgpo, edges of all iterations"] = Edges(player)
        for iteration in range(max(GRADED_ITERATIONS) + 1):
            rows, columns, exact = player.play(iteration)
            base = BASE_ESTIMATE(columns)
            graphgpo = GRAPHGPO(columns).total
            estimates = {"base": base, "graphgpo": graphgpo} | {
                label: memory.estimate(columns) for label, memory in memories.items()
            }
            if iteration in GRADED_ITERATIONS:
                truth = np.asarray(exact, np.float64)
                mask = np.asarray(columns.mask)
                for label, estimate in estimates.items():
                    values = np.asarray(estimate, np.float64)
                    key = f"rate {rate:g}, iteration {iteration}: {label}"
                    grades.setdefault(key, []).extend(correlate(values, truth, mask))
            player.train(rows, base, rate)
    return grades


def compare_with_base(grades: dict[str, list[float]]) -> dict[str, Any]:
    """Means and gains over the base of the same policy."""
    results = {}
    for label, values in grades.items():
        condition, _, _ = label.rpartition(": ")
        base = grades[f"{condition}: base" if condition else "base"]
        gain = summarise(np.subtract(values, base))
        results[label] = summarise(values) | {"gain": gain}
    return results


def main() -> None:
    """Writes the grades and prints them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/tabular_variants.json"))
    parser.add_argument("--worlds", default=",".join(NAMES), help="names of worlds (%(default)s)")
    arguments = parser.parse_args()
    results = {}
    for name in arguments.worlds.split(","):
        world = WORLDS[name]
        grades = grade_fresh(world)
        for rate in RATES:
            grades |= grade_memory(world, rate)
        results[name] = compare_with_base(grades)
        print(name, flush=True)
        for label, grade in results[name].items():
            gain = grade["gain"]
            print(f"  {label:60}{grade['mean']:.3f} ({gain['mean']:+.3f} +- {gain['margin']:.3f})")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
