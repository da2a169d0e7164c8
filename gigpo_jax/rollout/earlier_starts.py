"""Training groups that begin in states of earlier iterations' episodes.

ExIt (arXiv 2509.04575) adds states that episodes met to the tasks of training, SnapshotRL (arXiv
2403.00673) begins episodes in states of others; both are known to us from their abstracts. Our
choices: after an iteration, each group whose episodes differ in score or return gives one state,
of any step but the first of any of its episodes; the newest ones are kept; a share of the next
iterations' groups begin in them, drawn alike, in place of their own tasks. A group that began in
such a state may give one that lies further on.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.devices.host_records import all_records
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.rollout.recorded_starts import RecordedStarts, past_before
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.rollout.task_sources import NO_METRICS, TaskSource
from gigpo_jax.trajectory import EARLIER, Past, Trajectory, has_contrast

# Last numbers of the seeds of the draws; seeds of other draws do not have them.
_STARTS = (1 << 31) + 2
_STATES = (1 << 31) + 3
# Newest states that are kept, of 16 iterations or more with 16 groups: older ones are of a policy
# that is long gone.
CAPACITY = 256


class EarlierStarts(TaskSource):
    """The memory of states, equal on all hosts.

    Attributes:
      states: The states as JSON values, the oldest first.
      capacity: Largest number of states.
    """

    name = "earlier_starts"

    def __init__(self, config: ConfigDict, tasks: Sequence[Task]) -> None:
        """Begins without states."""
        train = config.train
        self._tasks = {(task.environment, task.id): task for task in tasks}
        # Plus a rounding error: 0.29 of 100 groups are 29.
        self._groups = int(train.earlier_starts * train.groups + 1e-6)
        self._seed = config.seed
        self.capacity = CAPACITY
        self.states: list[dict[str, Any]] = []

    def choose(self, job: RolloutJob, weights: np.ndarray | None) -> RolloutJob:
        """Replaces some of an iteration's tasks by states of the same environment.

        It is a pure function of the memory and the job.
        """
        generator = np.random.default_rng((self._seed, job.iteration, _STARTS))
        tasks = list(job.tasks)
        pasts = {}
        for place in generator.permutation(len(tasks))[: self._groups].tolist():
            label = tasks[place].environment
            entries = [entry for entry in self.states if entry["environment"] == label]
            if entries:
                entry = entries[generator.integers(len(entries))]
                tasks[place] = self._tasks[label, entry["task"]]
                state = (entry["text"], entry["anchor"])
                # Its reward would be a constant of the group, its tokens are in no statistic.
                pasts[place] = Past(tuple(entry["actions"]), state, source=EARLIER)
        return replace(job, tasks=tasks, starts=RecordedStarts(pasts))

    def add(
        self,
        trajectories: Sequence[Trajectory],
        iteration: int,
        metrics: Mapping[str, float] = NO_METRICS,
    ) -> dict[str, float]:
        """Adds a state of each group with contrast; the oldest ones go."""
        groups = defaultdict(list)
        for trajectory in trajectories:
            if not trajectory.aborted:
                groups[trajectory.group].append(trajectory)
        entries = []
        for number, episodes in groups.items():
            steps = [(episode, t) for episode in episodes for t in range(1, len(episode.turns))]
            if has_contrast(episodes) and steps:
                seed = (self._seed, iteration, number, _STATES)
                choice = np.random.default_rng(seed).integers(len(steps))
                entries.append(_make_entry(*steps[choice]))
        self.states = [*self.states, *all_records(entries)][-self.capacity :]
        return {"rollout/earlier_states": len(self.states)}

    def record(self) -> list[dict[str, Any]]:
        """The states."""
        return self.states

    def restore(self, record: list[dict[str, Any]]) -> None:
        """Continues with the states of a checkpoint."""
        self.states = record


def _make_entry(episode: Trajectory, number: int) -> dict[str, Any]:
    past = past_before(episode, number, EARLIER)
    assert past.state is not None
    text, anchor = past.state
    return {
        "environment": episode.task.environment,
        "task": episode.task.id,
        "actions": list(past.actions),
        "text": text,
        "anchor": anchor,
    }
