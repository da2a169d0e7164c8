"""What changes the tasks of a training run from one iteration to the next (docs/tasks.md)."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.keys import meets_condition
from gigpo_jax.config.mix import member_shares
from gigpo_jax.core.method_table import METHOD_SOURCES
from gigpo_jax.core.references import ReferenceTable
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.episode_parts import EpisodePart
from gigpo_jax.rollout.groups import GroupEnd
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.rollout.starts import TASK_STARTS, Starts
from gigpo_jax.rollout.tasks import draw_tasks, host_share, spare_groups
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

    def choose(self, tasks: Sequence[Task], iteration: int) -> tuple[Sequence[Task], Starts | None]:
        """Replaces some of the tasks that all hosts play in an iteration.

        Returns:
          The tasks, and where their episodes begin; None: the source does not change it.
        """
        return tasks, None

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
        """Continues from a `record`."""


# The sources in the order in which they learn, by what needs them
# (`config.keys.meets_condition`).
SOURCES: ReferenceTable[type[TaskSource]] = ReferenceTable(
    {
        "train.curriculum=success": "gigpo_jax.rollout.curriculum:Curriculum",
        "train.forks": "gigpo_jax.rollout.fork_starts:Forks",
        "train.earlier_starts": "gigpo_jax.rollout.earlier_starts:EarlierStarts",
    }
    | METHOD_SOURCES
)


def make_sources(
    config: ConfigDict, tasks: Sequence[Task], *, is_training: bool
) -> dict[str, TaskSource]:
    """Makes the sources that a config asks for, by name."""
    needed = [SOURCES[condition] for condition in SOURCES if meets_condition(config, condition)]
    return {
        source.name: source(config, tasks)
        for source in needed
        if is_training or not source.is_for_training
    }


def choose_tasks(
    config: ConfigDict, tasks: Sequence[Task], sources: Mapping[str, TaskSource], iteration: int
) -> RolloutJob:
    """Chooses this host's share of the tasks of a training iteration.

    Args:
      config: Config of the run.
      tasks: Tasks of all environments.
      sources: Sources by name, in the order in which they learn: the first with weights has them,
        and each may replace tasks that the ones before it chose.
      iteration: Number of the iteration.

    Raises:
      InputError: As `tasks.host_share`.
    """
    train = config.train
    weights = None
    for source in sources.values():
        weights = source.weights() if weights is None else weights
    shares = member_shares(config)
    chosen: Sequence[Task] = draw_tasks(
        tasks, iteration, train.groups, config.seed, weights, shares
    )
    spares = spare_groups(
        tasks, iteration, train.groups, train.refill_groups, config.seed, weights, shares
    )
    starts = TASK_STARTS
    for source in sources.values():
        chosen, new_starts = source.choose(chosen, iteration)
        starts = new_starts or starts
    # Every host draws all tasks, from the same seed, and takes its share.
    first_group, local_tasks = host_share(chosen)
    _, local_spares = host_share(spares)
    ends = GroupEnd(train.finish_fraction, local_spares)
    return RolloutJob(
        local_tasks, train.group_size, iteration, first_group, starts, ends, shares_texts=True
    )
