"""Training episodes that begin in states of an expert's episode, at first near its end.

It is the backward-to-forward order of TCOD (arXiv 2604.24005): with an expert's episode of n
actions, all episodes of its task replay the first max(0, n - 1 - floor(k / h)) of them in iteration
k, and the policy plays on. Our choice: an expert that fails gives no start, so these episodes begin
at the start of the task.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.mix import member_configs
from gigpo_jax.env_bridge.experts import begin_episode
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.types import EnvError, Task
from gigpo_jax.envs import registry
from gigpo_jax.rollout.demonstrations import episode_seed
from gigpo_jax.rollout.episode_parts import Episode, EpisodePart
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.rollout.starts import Starts
from gigpo_jax.rollout.task_sources import TaskSource
from gigpo_jax.trajectory import BEGINNING, Past, Turn

EXPERT = "expert_starts"  # source of the pasts, a key under `train`
REPLAYED = "rollout/expert_actions"
METRICS = {REPLAYED: "mean replayed actions of an expert"}


class ReplayedActions(EpisodePart):
    """Counts the actions of an expert, once an episode."""

    metrics = (REPLAYED,)
    is_for_training = True

    def after_turn(self, episode: Episode, turn: Turn) -> Turn:
        """Adds the number to the first step of an episode that begins in an expert's state."""
        past = episode.job.past
        if past.source != EXPERT or episode.trajectory.length:
            return turn
        return replace(turn, metrics={**turn.metrics, REPLAYED: len(past.actions)})


class ExpertStarts(TaskSource, Starts):
    """The starts of a run with `train.expert_starts`, whose environments have experts."""

    name = EXPERT

    def __init__(self, config: ConfigDict, tasks: Sequence[Task]) -> None:
        """Finds the config of each environment by its label."""
        del tasks
        self._members = member_configs(config)
        # Number of iterations after which episodes begin one action earlier, h.
        self._iterations = config.train.expert_starts
        self._seed = config.seed

    def choose(self, job: RolloutJob, weights: np.ndarray | None) -> RolloutJob:
        """Keeps the tasks, and begins their episodes."""
        return replace(job, starts=self)

    def replayed_actions(self, length: int, iteration: int) -> int:
        """Number of actions that are replayed, of `length`."""
        return max(0, length - 1 - iteration // self._iterations)

    async def begin_group(self, task: Task, group: int, iteration: int, pool: EnvPool) -> Past:
        """Lets the expert play, and chooses one of its states if it wins."""
        config = self._members[task.environment]
        # The number of a group is distinct within an iteration.
        seed = episode_seed(self._seed, iteration << 20 | group)
        expert = registry.make_expert(config.env.name, seed, **config.sft.demonstrator.to_dict())
        actions: list[str] = []
        rewards: list[float] = []
        won = False
        try:
            async with pool.episode() as environment:
                observation = await environment.reset(task)
                observations = [observation]
                begin_episode(expert, task)
                while len(actions) < config.env.max_steps:
                    actions.append(expert.act(observation))
                    result = await environment.step(actions[-1])
                    observation = result.observation
                    observations.append(observation)
                    rewards.append(result.reward)
                    won = bool(result.info["won"])
                    if result.done:
                        break
        except EnvError:
            # The policy's own episodes meet the failure, and report it.
            won = False
        if not won:
            return BEGINNING
        count = self.replayed_actions(len(actions), iteration)
        state = observations[count]
        return Past(
            tuple(actions[:count]),
            (state.text, state.anchor),
            sum(rewards[:count]),
            source=EXPERT,
        )
