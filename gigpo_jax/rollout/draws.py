"""Draws of tasks: a fixed, seeded order of the split, or draws by measured success.

In a run with several environments (`env.mix`) each has its share of the groups, and its own orders
or draws.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from gigpo_jax.env_bridge.types import Task

ALONE: Mapping[str, float] = MappingProxyType({"": 1.0})  # the shares of a run with one environment


def draw_tasks(
    tasks: Sequence[Task],
    iteration: int,
    groups: int,
    seed: int,
    weights: np.ndarray | None = None,
    shares: Mapping[str, float] = ALONE,
) -> list[Task]:
    """The `groups` tasks of an iteration, counted from 0.

    The tasks of an environment come in a shuffled order, again and again, each time in another one;
    none comes twice until all have come once. With `weights` [tasks] each iteration draws by these
    probabilities, no task twice if there are enough. A pure function: nothing needs to be stored to
    continue a run.

    Args:
      tasks: Tasks of all environments.
      iteration: Number of the iteration.
      groups: Number of tasks to draw.
      seed: Seed of the run.
      weights: Probabilities up to a factor for each environment; None: in order.
      shares: Share of the groups of each `Task.environment`; an iteration has that many groups,
        rounded up or down.
    """
    labels, earlier_groups = assign_environments(iteration, groups, seed, shares)
    draws = {}
    for label in dict.fromkeys(labels):
        start = earlier_groups[label]
        count = labels.count(label)
        drawn = draw_of_environment(tasks, label, iteration, (seed,), weights, start, count)
        draws[label] = iter(drawn)
    return [next(draws[label]) for label in labels]


def assign_environments(
    iteration: int, groups: int, seed: int, shares: Mapping[str, float]
) -> tuple[list[str], Counter[str]]:
    """Returns the label of each group of an iteration, and earlier groups of the same label."""
    if len(shares) == 1:
        (label,) = shares
        return [label] * groups, Counter({label: iteration * groups})
    from gigpo_jax.rollout.mixed_tasks import mix_environments

    return mix_environments(iteration, groups, seed, shares)


def draw_of_environment(
    tasks: Sequence[Task],
    label: str,
    iteration: int,
    seed: tuple[int, ...],
    weights: np.ndarray | None,
    start: int,
    count: int,
) -> list[Task]:
    """Returns `count` tasks of one environment, from `start` in its orders or drawn by weights.

    `seed` is the run's, and numbers that distinguish these draws from others.
    """
    indices = [index for index, task in enumerate(tasks) if task.environment == label]
    size = len(indices)
    if weights is not None:
        probabilities = weights[indices] / weights[indices].sum()
        # Weights change with the run's results, so each iteration draws for itself; there is no
        # order of epochs to continue.
        generator = np.random.default_rng((seed[0], iteration, *seed[1:], size))
        choices = generator.choice(size, count, replace=count > size, p=probabilities)
        return [tasks[indices[choice]] for choice in choices]
    drawn: list[Task] = []
    orders: dict[int, np.ndarray] = {}
    for place in range(start, start + count):
        epoch, position = divmod(place, size)
        # An iteration may cross the end of an epoch, so it may need two orders.
        if epoch not in orders:
            generator = np.random.default_rng((seed[0], epoch, *seed[1:]))
            orders[epoch] = generator.permutation(size)
        drawn.append(tasks[indices[orders[epoch][position]]])
    return drawn
