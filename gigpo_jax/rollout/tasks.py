"""Which tasks an iteration is about: a fixed, seeded order of the split, or draws by measured success.

In a run with several environments (`env.mix`) each has its share of the groups, and orders or draws of its own.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import jax
import numpy as np

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.errors import InputError

_T = TypeVar("_T")


NEWEST = 0.3  # weight of the newest iteration in a measured success rate
ALONE: Mapping[str, float] = MappingProxyType({"": 1.0})  # the shares of a run with one environment
FLOOR = 0.05  # of a type's weight: a type that always or never succeeds is still drawn, and so measured
_STARTS = 1 << 31  # The last number of the seed of random starts, which the seeds of other draws do not have.


class Curriculum:
    """`train.curriculum=success`: types of tasks that succeed about half the time are drawn most.

    The success of a group's episodes has variance p (1 - p), p being the success rate of its type; without variance
    there is nothing to learn from it. A type is drawn in proportion to p (1 - p) + FLOOR, its tasks evenly. The shares
    of environments stay.

    Attributes:
      rates: of each `Task.kind`, exponentially averaged over iterations, 1/2 before the first; part of a checkpoint.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        """Raises InputError if all tasks of each environment are of one type, or some of several types have none."""
        self._tasks, self._sizes = tasks, Counter(task.kind for task in tasks)
        self.rates = dict.fromkeys(self._sizes, 0.5)
        types = defaultdict(set)
        for task in tasks:
            types[task.environment].add(task.type)
        if all(len(own) < 2 for own in types.values()) or any(len(own) > 1 and "" in own for own in types.values()):
            raise InputError(
                f"config.train.curriculum='success': the tasks of env.split have the types {sorted(self.rates)}; use "
                "none, or tasks with two types (Task.type) or more"
            )

    def weights(self) -> np.ndarray:
        """[tasks] f64, the probability of each, up to a factor for each environment."""
        kinds = {kind: (rate * (1 - rate) + FLOOR) / self._sizes[kind] for kind, rate in self.rates.items()}
        weights = np.array([kinds[task.kind] for task in self._tasks])
        return weights / weights.sum()

    def add(self, metrics: Mapping[str, float]) -> None:
        """Adds an iteration's success rates by kind, which are those of all hosts."""
        for kind, rate in self.rates.items():
            newest = float(metrics.get(f"episode/success_rate/{kind}", rate))
            self.rates[kind] = (1 - NEWEST) * rate + NEWEST * newest


def draw_tasks(
    tasks: Sequence[Task],
    iteration: int,
    groups: int,
    seed: int,
    weights: np.ndarray | None = None,
    shares: Mapping[str, float] = ALONE,
) -> list[Task]:
    """The `groups` tasks of an iteration, counted from 0.

    The tasks of an environment come in a shuffled order, again and again, each time in another one; none comes twice
    before all have come once. With `weights` [tasks] each iteration draws by these probabilities, no task twice if
    there are enough. A pure function: nothing needs to be stored to continue a run.

    Args:
      tasks: of all environments.
      weights: None: in order.
      shares: of each `Task.environment` in the groups; an iteration has that many groups, rounded up or down.
    """
    now, before = _environments(iteration, groups, seed, shares)
    drawn = {
        label: iter(_draw(tasks, label, iteration, weights, seed, start=before[label], count=now.count(label)))
        for label in dict.fromkeys(now)
    }
    return [next(drawn[label]) for label in now]


def _environments(iteration: int, groups: int, seed: int, shares: Mapping[str, float]) -> tuple[list[str], Counter]:
    """The environment of each group of an iteration, and how many groups of each there were before.

    Systematic sampling: the points of an iteration have equal distances and a random start.
    """
    labels, ends = list(shares), np.cumsum(list(shares.values()))[:-1]
    starts = np.random.default_rng((seed, len(labels), _STARTS)).random(iteration + 1)
    points = (np.arange(groups) + starts[:, None]) / groups
    chosen = np.searchsorted(ends, points, side="right")
    now = np.random.default_rng((seed, iteration)).permutation(chosen[-1])
    counts = np.bincount(chosen[:-1].ravel(), minlength=len(labels))
    return [labels[place] for place in now], Counter(dict(zip(labels, counts.tolist(), strict=True)))


def _draw(
    tasks: Sequence[Task],
    label: str,
    iteration: int,
    weights: np.ndarray | None,
    *seed: int,
    start: int,
    count: int,
) -> list[Task]:
    """Tasks of one environment: `count` from the place `start` in its orders; with weights, `count` draws.

    The numbers after the first in `seed` make a stream of draws of its own.
    """
    own = [place for place, task in enumerate(tasks) if task.environment == label]
    first, *stream = seed
    if weights is not None:
        chosen, p = np.random.default_rng((first, iteration, *stream, len(own))), weights[own] / weights[own].sum()
        return [tasks[own[i]] for i in chosen.choice(len(own), count, replace=count > len(own), p=p)]
    drawn: list[Task] = []
    orders: dict[int, np.ndarray] = {}
    for place in range(start, start + count):
        epoch, index = divmod(place, len(own))
        if epoch not in orders:
            orders[epoch] = np.random.default_rng((first, epoch, *stream)).permutation(len(own))
        drawn.append(tasks[own[orders[epoch][index]]])
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
    """For each of the `groups` of an iteration, the numbers and tasks of those that may take its place, one by one.

    They are of the same environment and come from orders of their own, so the tasks of `draw_tasks` stay the same. A
    pure function as well: the spare groups of one group do not depend on what became of the others.
    """
    now, before = _environments(iteration, groups, seed, shares)
    found: list[list[tuple[int, Task]]] = [[] for _ in now]
    for label in dict.fromkeys(now):
        own = [place for place, other in enumerate(now) if other == label]
        start, count = before[label] * spares, len(own) * spares
        drawn = _draw(tasks, label, iteration, weights, seed, 1, start=start, count=count)
        for n, place in enumerate(own):
            found[place] = [(groups * (1 + k) + place, task) for k, task in enumerate(drawn[n :: len(own)])]
    return found


def host_share(items: Sequence[_T]) -> tuple[int, Sequence[_T]]:
    """The items that this host works on, and the place of the first among all; raises InputError if uneven."""
    hosts, host = jax.process_count(), jax.process_index()
    if len(items) % hosts:
        raise InputError(f"config.train.groups={len(items)}: must be a multiple of the {hosts} hosts")
    share = len(items) // hosts
    return host * share, items[host * share : (host + 1) * share]
