"""Tasks drawn by measured success (`train.curriculum=success`)."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.rollout.task_sources import NO_METRICS, TaskSource
from gigpo_jax.trajectory import Trajectory

NEWEST = 0.3  # weight of the newest iteration in a measured success rate
# Added to a type's weight: a type that always or never succeeds is still drawn, and so measured.
FLOOR = 0.05


class Curriculum(TaskSource):
    """`train.curriculum=success`: prefers types of tasks with success near 1/2.

    The success of a group's episodes has variance p (1 - p), p being the success rate of its type;
    without variance there is nothing to learn from it. A type is drawn in proportion to p (1 - p) +
    FLOOR, its tasks evenly. The shares of environments stay.

    Attributes:
      rates: Success rate of each `Task.kind`, exponentially averaged over iterations, 1/2 at the
        start; part of a checkpoint.
    """

    name = "curriculum"

    def __init__(self, config: ConfigDict, tasks: Sequence[Task]) -> None:
        """Takes the tasks of the run.

        Raises:
          InputError: no environment has several types, or one with several has tasks without a
            type.
        """
        del config
        self._tasks = tasks
        self._sizes = Counter(task.kind for task in tasks)
        self.rates = dict.fromkeys(self._sizes, 0.5)
        types_by_environment = defaultdict(set)
        for task in tasks:
            types_by_environment[task.environment].add(task.type)
        has_choice = any(len(types) > 1 for types in types_by_environment.values())
        has_untyped = any(len(types) > 1 and "" in types for types in types_by_environment.values())
        if not has_choice or has_untyped:
            raise InputError(
                f"the tasks of env.split have the types {sorted(self.rates)}",
                key="config.train.curriculum",
                value="'success'",
                fix="use none, or tasks with two types (Task.type) or more",
            )

    def weights(self) -> np.ndarray:
        """Returns the probability of each task, [tasks] f64, up to an environment's factor."""
        weights = []
        for task in self._tasks:
            rate = self.rates[task.kind]
            # Divided by the number of its tasks: the weight of a type does not grow with its size.
            weights.append((rate * (1 - rate) + FLOOR) / self._sizes[task.kind])
        return np.array(weights) / np.sum(weights)

    def add(
        self,
        trajectories: Sequence[Trajectory],
        iteration: int,
        metrics: Mapping[str, float] = NO_METRICS,
    ) -> dict[str, float]:
        """Adds an iteration's success rates by kind, from all hosts."""
        for kind, rate in self.rates.items():
            # A type that no task was drawn of keeps its rate.
            newest = float(metrics.get(f"episode/success_rate/{kind}", rate))
            self.rates[kind] = (1 - NEWEST) * rate + NEWEST * newest
        return {}

    def record(self) -> dict[str, float]:
        """The success rates."""
        return self.rates

    def restore(self, record: dict[str, float]) -> None:
        """Continues with the success rates of a checkpoint."""
        self.rates = record
