"""Forks: episodes of a group that begin in states of its first ones (docs/forks.md)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.rollout import fork_choices
from gigpo_jax.rollout.recorded_starts import past_before
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.rollout.starts import Starts
from gigpo_jax.rollout.task_sources import TaskSource
from gigpo_jax.rollout.uncertainty import mean_uncertainty
from gigpo_jax.trajectory import BEGINNING, FORKS, Past, Trajectory

# Last number of the seed of the draws; seeds of other draws do not have it.
_DRAWS = (1 << 31) + 1


class Forks(TaskSource, Starts):
    """The forks of a group, whose states follow from its first episodes, whichever ended last."""

    name = "forks"

    def __init__(self, config: ConfigDict, tasks: Sequence[Task]) -> None:
        """Reads how many there are, and how their states are chosen."""
        del tasks
        self.forks = config.train.forks
        self._choice = config.train.fork_choice
        self._gamma = config.rl.gamma
        self._seed = config.seed

    def choose(self, job: RolloutJob, weights: np.ndarray | None) -> RolloutJob:
        """Keeps the tasks, and begins their episodes."""
        return replace(job, starts=self)

    def begin_forks(self, episodes: Sequence[Trajectory], iteration: int) -> list[Past]:
        """Chooses states of the episodes that were not aborted; without one the task's start."""
        finished = [episode for episode in episodes if not episode.aborted]
        steps = [(episode, number) for episode in finished for number in range(len(episode.turns))]
        if not steps:
            return [BEGINNING] * self.forks
        visits = list_visits(steps)
        if self._choice == "uncertainty":
            rows = fork_choices.choose_uncertain(visits, self.forks, self._gamma)
        elif self._choice == "entropy":
            rows = fork_choices.choose_surprising(visits, self.forks)
        else:
            seed = (self._seed, iteration, episodes[0].group, _DRAWS)
            rows = fork_choices.choose_uniform(visits, self.forks, np.random.default_rng(seed))
        chosen = [steps[row] for row in rows.tolist()]
        return [past_before(episode, number, FORKS) for episode, number in chosen]


def list_visits(steps: Sequence[tuple[Trajectory, int]]) -> fork_choices.Visits:
    """Lists the visits of pairs (episode, index of a turn)."""
    turns = [episode.turns[number] for episode, number in steps]
    anchors = {turn.anchor: None for turn in turns}
    numbers = {anchor: number for number, anchor in enumerate(anchors)}
    return fork_choices.Visits(
        state=np.array([numbers[turn.anchor] for turn in turns]),
        episode=np.array([episode.member for episode, _ in steps]),
        step=np.array([number for _, number in steps]),
        reward=np.array([turn.reward - turn.penalty for turn in turns]),
        surprise=np.array([mean_uncertainty(t.logprobs, t.entropies) for t in turns]),
    )
