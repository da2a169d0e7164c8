"""Which tasks an iteration is about: a fixed, seeded order of the split, as a function of the iteration alone."""

from collections.abc import Sequence
from typing import TypeVar

import jax
import numpy as np

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.errors import InputError

_T = TypeVar("_T")


def draw_tasks(
    tasks: Sequence[Task], iteration: int, groups: int, seed: int, stream: tuple[int, ...] = ()
) -> list[Task]:
    """The `groups` tasks of an iteration, counted from 0.

    The split is gone through in a shuffled order, again and again, each time in another one; no task comes twice
    before all have come once. A pure function: nothing needs to be stored to continue a run. Each `stream` has other
    orders.
    """
    drawn: list[Task] = []
    orders: dict[int, np.ndarray] = {}
    for place in range(iteration * groups, (iteration + 1) * groups):
        epoch, index = divmod(place, len(tasks))
        if epoch not in orders:
            orders[epoch] = np.random.default_rng((seed, epoch, *stream)).permutation(len(tasks))
        drawn.append(tasks[orders[epoch][index]])
    return drawn


def spare_groups(
    tasks: Sequence[Task], iteration: int, groups: int, spares: int, seed: int
) -> list[list[tuple[int, Task]]]:
    """For each of the `groups` of an iteration, the numbers and tasks of those that may take its place, one by one.

    They come from orders of their own, so the tasks of `draw_tasks` stay the same. A pure function as well: the spare
    groups of one group do not depend on what became of the others.
    """
    drawn = draw_tasks(tasks, iteration, groups * spares, seed, stream=(1,))
    return [[(groups + n, drawn[n]) for n in range(place, groups * spares, groups)] for place in range(groups)]


def host_share(items: Sequence[_T]) -> tuple[int, Sequence[_T]]:
    """The items that this host works on, and the place of the first among all; raises InputError if uneven."""
    hosts, host = jax.process_count(), jax.process_index()
    if len(items) % hosts:
        raise InputError(f"config.train.groups={len(items)}: must be a multiple of the {hosts} hosts")
    share = len(items) // hosts
    return host * share, items[host * share : (host + 1) * share]
