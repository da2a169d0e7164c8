"""Which tasks an iteration is about: a fixed, seeded order of the split, or draws by measured success."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

import jax
import numpy as np

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.errors import InputError

_T = TypeVar("_T")


NEWEST = 0.3  # weight of the newest iteration in a measured success rate
FLOOR = 0.05  # of a type's weight: a type that always or never succeeds is still drawn, and so measured


class Curriculum:
    """`train.curriculum=success`: types of tasks that succeed about half the time are drawn most.

    The success of a group's episodes has variance p (1 - p), p being the success rate of its type; without variance
    there is nothing to learn from it. A type is drawn in proportion to p (1 - p) + FLOOR, its tasks evenly.

    Attributes:
      rates: of each type, exponentially averaged over iterations, 1/2 before the first; part of a checkpoint.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        """Raises InputError if all tasks are of one type, or some of none."""
        self._tasks, self._sizes = tasks, Counter(task.type for task in tasks)
        self.rates = dict.fromkeys(self._sizes, 0.5)
        if len(self.rates) < 2 or "" in self.rates:
            raise InputError(
                f"config.train.curriculum='success': the tasks of env.split have the types {sorted(self.rates)}; use "
                "none, or tasks with two types (Task.type) or more"
            )

    def weights(self) -> np.ndarray:
        """[tasks] f64, the probability of each."""
        types = {kind: (rate * (1 - rate) + FLOOR) / self._sizes[kind] for kind, rate in self.rates.items()}
        weights = np.array([types[task.type] for task in self._tasks])
        return weights / weights.sum()

    def add(self, metrics: Mapping[str, float]) -> None:
        """Adds an iteration's success rates by type, which are those of all hosts."""
        for kind, rate in self.rates.items():
            newest = float(metrics.get(f"episode/success_rate/{kind}", rate))
            self.rates[kind] = (1 - NEWEST) * rate + NEWEST * newest


def draw_tasks(
    tasks: Sequence[Task],
    iteration: int,
    groups: int,
    seed: int,
    stream: tuple[int, ...] = (),
    weights: np.ndarray | None = None,
) -> list[Task]:
    """The `groups` tasks of an iteration, counted from 0.

    The split is gone through in a shuffled order, again and again, each time in another one; no task comes twice
    before all have come once. A pure function: nothing needs to be stored to continue a run. Each `stream` has other
    orders. With `weights` [tasks] each iteration draws by these probabilities, no task twice if there are enough.
    """
    if weights is not None:
        chosen = np.random.default_rng((seed, iteration, *stream, len(tasks)))
        return [tasks[i] for i in chosen.choice(len(tasks), groups, replace=groups > len(tasks), p=weights)]
    drawn: list[Task] = []
    orders: dict[int, np.ndarray] = {}
    for place in range(iteration * groups, (iteration + 1) * groups):
        epoch, index = divmod(place, len(tasks))
        if epoch not in orders:
            orders[epoch] = np.random.default_rng((seed, epoch, *stream)).permutation(len(tasks))
        drawn.append(tasks[orders[epoch][index]])
    return drawn


def spare_groups(
    tasks: Sequence[Task], iteration: int, groups: int, spares: int, seed: int, weights: np.ndarray | None = None
) -> list[list[tuple[int, Task]]]:
    """For each of the `groups` of an iteration, the numbers and tasks of those that may take its place, one by one.

    They come from orders of their own, so the tasks of `draw_tasks` stay the same. A pure function as well: the spare
    groups of one group do not depend on what became of the others.
    """
    drawn = draw_tasks(tasks, iteration, groups * spares, seed, stream=(1,), weights=weights)
    return [[(groups + n, drawn[n]) for n in range(place, groups * spares, groups)] for place in range(groups)]


def host_share(items: Sequence[_T]) -> tuple[int, Sequence[_T]]:
    """The items that this host works on, and the place of the first among all; raises InputError if uneven."""
    hosts, host = jax.process_count(), jax.process_index()
    if len(items) % hosts:
        raise InputError(f"config.train.groups={len(items)}: must be a multiple of the {hosts} hosts")
    share = len(items) // hosts
    return host * share, items[host * share : (host + 1) * share]
