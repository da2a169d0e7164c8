"""Trains tabular policies with every estimator, in worlds whose success is known exactly.

    python -m benchmarks.tabular_learning base limit=18 slip=0.4
    python -m benchmarks.tabular_learning unseen rates
    python -m benchmarks.tabular_learning order

Names of worlds train a table of logits for each task. `unseen` trains weights of features too,
which all tasks of a seed share, and measures tasks that training never sees. The learning rate of
each arm is the one of eight with the largest area under the success curve on `TUNING_SEEDS`; the
results are from `BATCHES`, one file a name. benchmarks/protocols/tabular.md is the protocol; `rates`,
which gives two arms the same learning rates, was added after the results of `unseen` were seen. `order` compares the results in
benchmarks/results with the grades of benchmarks/tabular_credit.py.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import stats

from benchmarks.results import RESULTS, find_campaign
from benchmarks.tabular_worlds import (
    ARMS,
    BASE,
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
from gigpo_jax.rl import segments
from gigpo_jax.rl.losses import LossSettings, loss_divisor, policy_loss
from gigpo_jax.rl.types import StepBatch, StepColumns

BATCHES = (range(8), range(8, 16))  # seeds that are reported
TUNING_SEEDS = (100, 101)
TEMPERATURES = (1.0, 0.4, 0.01)
TABLE_RATES = tuple(64.0 * 2**k for k in range(8))
SHARED_RATES = tuple(16.0 * 2**k for k in range(8))
UNSEEN = 5_000  # offset of the seeds of tasks that training never sees
EQUAL_RATES = (32.0, 128.0, 256.0, 512.0)
LEARNERS = ARMS | {"exact": ("exact", {})}
Estimate = Callable[[StepColumns, Array], Array]


@dataclass(frozen=True)
class Training:
    """Settings of a training.

    Attributes:
      iterations: Number of updates.
      shared: Whether the weights of features are trained.
      memory: Factor of the learning rate of the tables.
      fresh: Whether every iteration has new tasks.
      entropy_coef: Weight of the entropy bonus.
    """

    iterations: int = 10
    shared: bool = False
    memory: float = 1.0
    fresh: bool = False
    entropy_coef: float = 0.0


SHARED = Training(iterations=20, shared=True, memory=10.0)


def make_estimate(name: str, settings: dict[str, Any]) -> Estimate:
    """The advantages of the rows by columns and exact advantages, [N]."""
    if name == "exact":
        return _whiten
    estimator = make_estimator(name, settings)
    return lambda columns, _: estimator(columns).total


@jax.jit
def _whiten(columns: StepColumns, truth: Array) -> Array:
    """The exact advantages, in units of their deviation in the task group."""
    return segments.compare_values(
        truth, truth, columns.group, columns.mask, normalize="mean_std", ddof=1, eps=1e-6
    )


@partial(jax.jit, static_argnames="entropy_coef")
def update(
    table: Array,
    weights: Array,
    prior: Array,
    feature: Array,
    rows: Rows,
    advantage: Array,
    rates: Array,
    *,
    entropy_coef: float,
) -> tuple[Array, Array, Array]:
    """One step of gradient descent on the loss of the learner.

    Args:
      table: [B, M, S, A], logits that each task has for itself.
      weights: [B, F], logits of features.
      prior: [B, M, S, A], logits before training.
      feature: [B, M, S, A] i32.
      rows: Rows with a leading axis [B].
      advantage: [N].
      rates: [B, 2], learning rates of table and weights.
      entropy_coef: Weight of the entropy bonus.

    Returns:
      Table, weights, entropy of the policy [B].
    """
    blocks, limit, tasks, episodes = rows.mask.shape
    advantage = jnp.moveaxis(advantage.reshape(blocks, tasks, episodes, limit), 3, 1)
    # One update for each batch: the ratio is 1 and no clip acts.
    settings = LossSettings(clip_low=0.2, clip_high=0.2, entropy_coef=entropy_coef)
    task = jnp.arange(tasks)[:, None]

    def lose(
        trained: tuple[Array, Array], prior: Array, feature: Array, rows: Rows, advantage: Array
    ) -> tuple[Array, Array]:
        table, weights = trained
        logprobs = jax.nn.log_softmax(prior + table + weights[feature])[task, rows.state]
        logprob = jnp.take_along_axis(logprobs, rows.action[..., None], -1)[..., 0]
        entropy = -(jnp.exp(logprobs) * logprobs).sum(-1)

        def flatten(values: Array) -> Array:
            return values.reshape(limit, -1)

        batch = StepBatch(
            tokens=None,
            positions=None,
            segment_ids=None,
            response_index=None,
            responses=None,
            targets=None,
            behaviour=flatten(jax.lax.stop_gradient(logprob)),
            advantage=flatten(advantage),
            weight=flatten(rows.mask.astype(jnp.float32)),
            microbatches=None,
        )
        sums = policy_loss(flatten(logprob), flatten(entropy), batch, settings)
        return sums.loss / loss_divisor(batch), sums.entropy / sums.tokens

    gradient = jax.vmap(jax.grad(lose, has_aux=True))
    steps, entropy = gradient((table, weights), prior, feature, rows, advantage)
    table = table - rates[:, 0, None, None, None] * steps[0]
    return table, weights - rates[:, 1, None] * steps[1], entropy


@dataclass(frozen=True)
class Curves:
    """Success after each iteration, [iterations, B].

    Attributes:
      trained: Tasks of the training at temperature 1.
      entropy: Entropy of the policy in nats.
      unseen: Tasks that training never sees, by temperature; none without shared weights.
    """

    trained: np.ndarray
    entropy: np.ndarray
    unseen: dict[float, np.ndarray]


def train(
    world: World,
    estimate: Estimate,
    seeds: Sequence[int],
    rates: Sequence[float],
    training: Training,
) -> Curves:
    """Trains the policies of one block a seed, each with its learning rate."""
    skill = find_skill(world)
    slip = jnp.float32(world.slip)

    def draw(offset: int) -> tuple[Tasks, Array]:
        blocks = [make_tasks(world, seed + offset, count_tasks(world)) for seed in seeds]
        tasks = stack_blocks(blocks)
        return tasks, skill * tasks.progress + tasks.noise

    tasks, prior = draw(0)
    unseen_tasks, unseen_prior = draw(UNSEEN)
    keys = jax.vmap(jax.random.key)(jnp.array(seeds))
    factors = jnp.array([training.memory, float(training.shared)])
    table = jnp.zeros_like(prior)
    weights = jnp.zeros((len(seeds), FEATURES))
    trained = []
    entropies = []
    unseen: dict[float, list[Array]] = {heat: [] for heat in TEMPERATURES if training.shared}
    block = jnp.arange(len(seeds))[:, None, None, None]
    for iteration in range(training.iterations):
        if training.fresh:
            tasks, prior = draw(2 * UNSEEN * (iteration + 1))
        logits = prior + table + weights[block, tasks.feature]
        iteration_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, iteration)
        dials = dial_values(world)
        starts = start_episodes(tasks)
        rows, truth = play(iteration_keys, tasks, logits, dials, starts, limit=world.limit)
        table, weights, entropy = update(
            table,
            weights,
            prior,
            tasks.feature,
            rows,
            estimate(make_columns(rows), flatten_rows(truth)),
            jnp.array(rates)[:, None] * factors,
            entropy_coef=training.entropy_coef,
        )
        logits = prior + table + weights[block, tasks.feature]
        trained.append(measure_success(tasks, logits, slip, limit=world.limit).mean(1))
        entropies.append(entropy)
        unseen_logits = unseen_prior + weights[block, unseen_tasks.feature]
        for heat, curve in unseen.items():
            success = measure_success(unseen_tasks, unseen_logits / heat, slip, limit=world.limit)
            curve.append(success.mean(1))
    return Curves(
        np.stack(trained),
        np.stack(entropies),
        {heat: np.stack(curve) for heat, curve in unseen.items()},
    )


def tune(
    world: World, estimate: Estimate, training: Training, panel: str
) -> tuple[float, dict[str, list[float]]]:
    """The learning rate with the largest area of a panel, and the areas of all."""
    rates = SHARED_RATES if training.shared else TABLE_RATES
    areas: dict[str, list[np.ndarray]] = {}
    for seed in TUNING_SEEDS:
        curves = train(world, estimate, [seed] * len(rates), rates, training)
        areas.setdefault("trained", []).append(curves.trained.mean(0))
        for heat, curve in curves.unseen.items():
            areas.setdefault(f"unseen at {heat:g}", []).append(curve.mean(0))
    means = {name: np.mean(values, 0) for name, values in areas.items()}
    rate = rates[int(means[panel].argmax())]
    return rate, {name: (100 * mean).tolist() for name, mean in means.items()}


def report(world: World, estimate: Estimate, training: Training, rate: float) -> dict[str, Any]:
    """Areas and final success of the reported seeds."""
    outcomes: dict[str, list[float]] = {}

    def add(name: str, values: np.ndarray) -> None:
        outcomes.setdefault(name, []).extend((100 * values).tolist())

    for seeds in BATCHES:
        curves = train(world, estimate, seeds, [rate] * len(seeds), training)
        add("trained area", curves.trained.mean(0))
        add("trained final", curves.trained[-1])
        add("entropy final", curves.entropy[-1] / 100)
        for heat, curve in curves.unseen.items():
            add(f"unseen area at {heat:g}", curve.mean(0))
            add(f"unseen final at {heat:g}", curve[-1])
    return {"rate": rate} | {name: summarise(values) for name, values in outcomes.items()}


def add_gains(by_arm: dict[str, dict[str, Any]], baseline: dict[str, Any]) -> None:
    """Adds the differences from the baseline, paired by seed."""
    for outcomes in by_arm.values():
        for name, outcome in list(outcomes.items()):
            if isinstance(outcome, dict) and "by_seed" in outcome:
                difference = np.subtract(outcome["by_seed"], baseline[name]["by_seed"])
                outcome["gain"] = summarise(difference)


def compare_arms(
    world: World, training: Training, arms: Sequence[str], panel: str
) -> dict[str, dict[str, Any]]:
    """Tunes and trains arms, and prints them."""
    by_arm = {}
    for arm in arms:
        estimate = make_estimate(*LEARNERS[arm])
        rate, areas = tune(world, estimate, training, panel)
        by_arm[arm] = report(world, estimate, training, rate) | {"tuning areas": areas}
    print_gains(by_arm)
    return by_arm


def print_gains(by_arm: dict[str, dict[str, Any]]) -> None:
    """Adds and prints the differences from GRPO, paired by seed."""
    add_gains(by_arm, by_arm["grpo"])
    for arm, outcomes in by_arm.items():
        cells = [
            f"{name} {outcome['mean']:.1f} ({outcome['gain']['mean']:+.1f}"
            f" +- {outcome['gain']['margin']:.1f})"
            for name, outcome in outcomes.items()
            if isinstance(outcome, dict) and "gain" in outcome
        ]
        print(f"  {arm:24} rate {outcomes['rate']:g}  " + "  ".join(cells), flush=True)


def compare_reasons() -> dict[str, Any]:
    """Compares reasons why gains do not reach unseen tasks."""
    plain = SHARED
    few = ("grpo", "gigpo", "graph_values", "exact")
    many = (*few[:2], "salt", "g2po", "graph_values", "graph_values episode=1", "exact")
    seen = "trained"
    conditions = {
        "plain": (plain, many, seen),
        "rate tuned on unseen tasks": (plain, few, "unseen at 1"),
        "entropy bonus 0.03": (replace(plain, entropy_coef=0.03), few, seen),
        "no memory": (replace(plain, memory=0.0), few, seen),
        "new tasks": (replace(plain, memory=0.0, fresh=True), few, seen),
    }
    results = {}
    for name, (training, arms, panel) in conditions.items():
        print(name, flush=True)
        results[name] = compare_arms(BASE, training, arms, panel)
    return results


def compare_rates() -> dict[str, Any]:
    """Trains GRPO and values from the graph with equal learning rates."""
    results = {}
    for rate in EQUAL_RATES:
        print(f"rate {rate:g}", flush=True)
        by_arm = {
            arm: report(BASE, make_estimate(*LEARNERS[arm]), SHARED, rate)
            for arm in ("grpo", "graph_values")
        }
        print_gains(by_arm)
        results[f"{rate:g}"] = by_arm
    return results


def print_order() -> None:
    """Prints rank correlations of grades and areas over the estimators."""
    grades = json.loads((RESULTS / "tabular_credit.json").read_text())
    correlations = []
    for name in WORLDS:
        runs = json.loads((find_campaign("tabular") / f"{name}.json").read_text())
        # Rounded: arms with the same gradient are equal but for the order of its sums.
        areas = [round(runs[arm]["trained area"]["mean"], 2) for arm in ARMS]
        by_arm = [grades[name]["estimates"][arm] for arm in ARMS]
        ranks = [
            stats.spearmanr([grade[kind]["mean"] for grade in by_arm], areas).statistic
            for kind in ("by row", "by action")
        ]
        correlations.append(ranks)
        print(f"{name:16}by row {ranks[0]:.2f}   by action {ranks[1]:.2f}")
    means = np.mean(correlations, 0)
    print(f"{'mean':16}by row {means[0]:.2f}   by action {means[1]:.2f}")


def main() -> None:
    """Writes one file for each name."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="+", choices=[*WORLDS, "unseen", "rates", "order"], metavar="NAME"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/tabular"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names:
        if name == "order":
            print_order()
            continue
        print(name, flush=True)
        if name == "unseen":
            results = compare_reasons()
        elif name == "rates":
            results = compare_rates()
        else:
            results = compare_arms(WORLDS[name], Training(), tuple(LEARNERS), "trained")
        (arguments.out / f"{name}.json").write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
