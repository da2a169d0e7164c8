"""What changes the tasks of a training run from one iteration to the next (docs/tasks.md)."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.core.references import ReferenceTable
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.trajectory import Past, Trajectory

NO_METRICS: Mapping[str, float] = MappingProxyType({})


class TaskSource:
    """A memory of earlier iterations, equal on all hosts, on which the next ones depend.

    Every method but `record` and `restore` may be left out.
    """

    def weights(self) -> np.ndarray | None:
        """Probability of each task of the run, up to an environment's factor; None: its order."""
        return None

    def choose(
        self, tasks: Sequence[Task], iteration: int
    ) -> tuple[Sequence[Task], Sequence[Past] | None]:
        """Replaces some of an iteration's tasks, which are those of all hosts.

        Returns:
          The tasks, and where their episodes begin; None: all at the start of their task.
        """
        return tasks, None

    def add(
        self,
        trajectories: Sequence[Trajectory],
        iteration: int,
        metrics: Mapping[str, float] = NO_METRICS,
    ) -> dict[str, float]:
        """Adds an iteration; all hosts call this together.

        Args:
          trajectories: Episodes of this host, aborted ones included.
          iteration: Number of their iteration.
          metrics: Metrics of all hosts' episodes.

        Returns:
          Metrics of the memory.
        """
        return {}

    def record(self) -> Any:
        """The memory as JSON values, for a checkpoint's record."""
        raise NotImplementedError

    def restore(self, record: Any) -> None:
        """Continues from a `record`."""
        raise NotImplementedError


# The sources by the name of their record in a checkpoint, in the order in which they learn.
SOURCES: ReferenceTable[Callable[[ConfigDict, Sequence[Task]], TaskSource]] = ReferenceTable(
    {
        "curriculum": "gigpo_jax.rollout.curriculum:make_curriculum",
        "earlier_starts": "gigpo_jax.rollout.earlier_starts:make_earlier_starts",
        "library": "gigpo_jax.methods.slea.experience:make_library",
    }
)


def make_sources(config: ConfigDict, tasks: Sequence[Task]) -> dict[str, TaskSource]:
    """Makes the sources that a training run's config asks for."""
    train = config.train
    needed = {
        "curriculum": train.curriculum == "success",
        "earlier_starts": train.earlier_starts > 0,
        "library": train.experience > 0,
    }
    return {name: SOURCES[name](config, tasks) for name in SOURCES if needed[name]}
