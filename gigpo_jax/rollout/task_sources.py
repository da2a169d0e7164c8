"""What changes the tasks of a training run from one iteration to the next (docs/tasks.md)."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.episode_parts import EpisodePart
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.trajectory import Trajectory

NO_METRICS: Mapping[str, float] = MappingProxyType({})


class TaskSource:
    """What the next iterations depend on, equal on all hosts, such as a memory of earlier ones.

    Every method may be left out.

    Attributes:
      name: Name of its record in a checkpoint.
      is_for_training: Whether training runs alone have it; evaluations have the others too.
    """

    name = ""
    is_for_training = True

    def __init__(self, config: ConfigDict, tasks: Sequence[Task]) -> None:
        """Makes the memory of a run at its start; an evaluation names no tasks."""

    def weights(self) -> np.ndarray | None:
        """Probability of each task of the run, up to an environment's factor; None: its order."""
        return None

    def choose(self, job: RolloutJob, weights: np.ndarray | None) -> RolloutJob:
        """Replaces tasks of an iteration, or says where episodes begin or when groups end.

        Args:
          job: What all hosts play.
          weights: The `weights` of the iteration.
        """
        return job

    def make_part(self) -> EpisodePart | None:
        """Makes the part of an episode that reads the memory; None: episodes read nothing."""
        return None

    def write_notes(
        self,
        trajectories: Sequence[Trajectory],
        iteration: int,
        make_writers: Callable[[], Mapping[str, EpisodeRunner]],
    ) -> Coroutine[Any, Any, None] | None:
        """Lets the policy write notes on an iteration's episodes, before the iteration is added.

        All hosts call this together. None: it never writes any.
        """
        return None

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
        """The memory as JSON values, for a checkpoint's record; None: there is nothing to keep."""
        return None

    def restore(self, record: Any) -> None:
        """Continues from a `record` that is not None."""
