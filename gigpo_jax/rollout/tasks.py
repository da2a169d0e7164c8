"""Tasks of an iteration: a fixed, seeded order of the split, or draws by measured success.

In a run with several environments (`env.mix`) each has its share of the groups, and its own orders
or draws.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import jax
import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import Task

_T = TypeVar("_T")

ALONE: Mapping[str, float] = MappingProxyType({"": 1.0})  # the shares of a run with one environment
# Last number of the seed of random starts; seeds of other draws do not have it.
_STARTS = 1 << 31


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
    labels, earlier_groups = _assign_environments(iteration, groups, seed, shares)
    draws = {}
    for label in dict.fromkeys(labels):
        stream = _Stream(label, iteration, (seed,))
        start = earlier_groups[label]
        draws[label] = iter(_draw(tasks, stream, weights, start, labels.count(label)))
    return [next(draws[label]) for label in labels]


def _assign_environments(
    iteration: int, groups: int, seed: int, shares: Mapping[str, float]
) -> tuple[list[str], Counter]:
    """Returns the label of each group of an iteration, and earlier groups of the same label.

    Systematic sampling: the points of an iteration have equal distances and a random start.
    """
    labels = list(shares)
    ends = np.cumsum(list(shares.values()))[:-1]
    # All earlier iterations are assigned again: their counts need not be stored.
    starts = np.random.default_rng((seed, len(labels), _STARTS)).random(iteration + 1)
    points = (np.arange(groups) + starts[:, None]) / groups
    assignments = np.searchsorted(ends, points, side="right")
    # The points are sorted, and hosts take contiguous shares of the groups: in their order a host
    # would play one environment alone.
    newest = np.random.default_rng((seed, iteration)).permutation(assignments[-1])
    counts = np.bincount(assignments[:-1].ravel(), minlength=len(labels))
    earlier_groups = Counter(dict(zip(labels, counts.tolist(), strict=True)))
    return [labels[index] for index in newest], earlier_groups


@dataclass(frozen=True)
class _Stream:
    """Random numbers of one environment.

    Attributes:
      label: Label of the environment.
      iteration: Number of the iteration.
      seed: Seed of the run, and the numbers that distinguish this stream of draws from others.
    """

    label: str
    iteration: int
    seed: tuple[int, ...]

    def generator(self, number: int, *size: int) -> np.random.Generator:
        return np.random.default_rng((self.seed[0], number, *self.seed[1:], *size))


def _draw(
    tasks: Sequence[Task], stream: _Stream, weights: np.ndarray | None, start: int, count: int
) -> list[Task]:
    """Returns `count` tasks of one environment, from `start` in its orders or drawn by weights."""
    indices = [index for index, task in enumerate(tasks) if task.environment == stream.label]
    size = len(indices)
    if weights is not None:
        probabilities = weights[indices] / weights[indices].sum()
        # Weights change with the run's results, so each iteration draws for itself; there is no
        # order of epochs to continue.
        generator = stream.generator(stream.iteration, size)
        choices = generator.choice(size, count, replace=count > size, p=probabilities)
        return [tasks[indices[choice]] for choice in choices]
    drawn: list[Task] = []
    orders: dict[int, np.ndarray] = {}
    for place in range(start, start + count):
        epoch, position = divmod(place, size)
        # An iteration may cross the end of an epoch, so it may need two orders.
        if epoch not in orders:
            orders[epoch] = stream.generator(epoch).permutation(size)
        drawn.append(tasks[indices[orders[epoch][position]]])
    return drawn


def spare_groups(
    tasks: Sequence[Task],
    iteration: int,
    groups: int,
    spares: int,
    seed: int,
    weights: np.ndarray | None = None,
    shares: Mapping[str, float] = ALONE,
) -> list[list[tuple[int, Task]]]:
    """Returns spare groups that may replace groups of an iteration.

    For each of the `groups` these are group numbers and tasks, in order. They are of the same
    environment and come from their own orders, so the tasks of `draw_tasks` stay the same. A pure
    function as well: the spare groups of one group do not depend on the results of the other
    groups.
    """
    labels, earlier_groups = _assign_environments(iteration, groups, seed, shares)
    replacements: list[list[tuple[int, Task]]] = [[] for _ in labels]
    for label in dict.fromkeys(labels):
        places = [place for place, assigned in enumerate(labels) if assigned == label]
        # 1 keeps these orders apart from those of `draw_tasks`.
        stream = _Stream(label, iteration, (seed, 1))
        start = earlier_groups[label] * spares
        drawn = _draw(tasks, stream, weights, start, len(places) * spares)
        for number, place in enumerate(places):
            replacements[place] = [
                # Numbers behind those of the iteration's groups, distinct by place and round:
                # so are the keys.
                (groups * (1 + round_number) + place, task)
                for round_number, task in enumerate(drawn[number :: len(places)])
            ]
    return replacements


def host_share(items: Sequence[_T]) -> tuple[int, Sequence[_T]]:
    """Index of this host's first item, and its items.

    Raises:
      InputError: the split is uneven.
    """
    hosts = jax.process_count()
    host = jax.process_index()
    if len(items) % hosts:
        raise InputError(
            f"must be a multiple of the {hosts} hosts", key="config.train.groups", value=len(items)
        )
    share = len(items) // hosts
    return host * share, items[host * share : (host + 1) * share]
