"""The task source of groups that end early and of spare groups (docs/tasks.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.mix import member_shares
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.rollout.draws import ALONE, assign_environments, draw_of_environment
from gigpo_jax.rollout.early_ends import EarlyEnd
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.rollout.task_sources import TaskSource


class GroupEnds(TaskSource):
    """The early ends and the spare groups of a run."""

    name = "group_ends"

    def __init__(self, config: ConfigDict, tasks: Sequence[Task]) -> None:
        """Takes the tasks of the run, of which the spare groups are."""
        self._config = config
        self._tasks = tasks

    def choose(self, job: RolloutJob, weights: np.ndarray | None) -> RolloutJob:
        """Draws the spare groups, whatever tasks the job has."""
        train = self._config.train
        spares = spare_groups(
            self._tasks,
            job.iteration,
            train.groups,
            train.refill_groups,
            self._config.seed,
            weights,
            member_shares(self._config),
        )
        return replace(job, ends=EarlyEnd(train.finish_fraction, spares))


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
    labels, earlier_groups = assign_environments(iteration, groups, seed, shares)
    replacements: list[list[tuple[int, Task]]] = [[] for _ in labels]
    for label in dict.fromkeys(labels):
        places = [place for place, assigned in enumerate(labels) if assigned == label]
        # 1 keeps these orders apart from those of `draw_tasks`.
        start = earlier_groups[label] * spares
        count = len(places) * spares
        drawn = draw_of_environment(tasks, label, iteration, (seed, 1), weights, start, count)
        for number, place in enumerate(places):
            replacements[place] = [
                # Numbers behind those of the iteration's groups, distinct by place and round:
                # so are the keys.
                (groups * (1 + round_number) + place, task)
                for round_number, task in enumerate(drawn[number :: len(places)])
            ]
    return replacements
