"""Training episodes that begin in states of an expert's episode, at first near its end.

It is the backward-to-forward order of TCOD (arXiv 2604.24005): with an expert's episode of n
actions, all episodes of its task replay the first max(0, n - 1 - floor(k / h)) of them in iteration
k, and the policy plays on. Our choice: an expert that fails gives no start, so these episodes begin
at the start of the task.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gigpo_jax.env_bridge.base import begin_episode
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.types import EnvError, Task
from gigpo_jax.envs import registry
from gigpo_jax.rollout.demonstrations import episode_seed
from gigpo_jax.rollout.environment import RunEnvironment
from gigpo_jax.trajectory import BEGINNING, EXPERT, Past


@dataclass(frozen=True)
class ExpertStarts:
    """The starts of one environment's training episodes.

    Attributes:
      environment: Name of the environment, which has an expert.
      iterations: Number of iterations after which episodes begin one action earlier, h.
      max_steps: Largest number of the expert's actions.
      options: Options of the expert.
      seed: Seed of the run.
    """

    environment: str
    iterations: int
    max_steps: int
    options: dict[str, Any]
    seed: int

    def replayed_actions(self, length: int, iteration: int) -> int:
        """Number of actions that are replayed, of `length`."""
        return max(0, length - 1 - iteration // self.iterations)

    async def find_start(self, pool: EnvPool, task: Task, iteration: int, group: int) -> Past:
        """Lets the expert play, and returns where episodes begin, by the arguments alone."""
        # The number of a group is distinct within an iteration.
        seed = episode_seed(self.seed, iteration << 20 | group)
        expert = registry.make_expert(self.environment, seed, **self.options)
        actions: list[str] = []
        rewards: list[float] = []
        won = False
        try:
            async with pool.episode() as environment:
                observation = await environment.reset(task)
                observations = [observation]
                begin_episode(expert, task)
                while len(actions) < self.max_steps:
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


async def find_starts(
    environments: Sequence[RunEnvironment],
    pools: Mapping[str, EnvPool],
    tasks: Sequence[Task],
    iteration: int,
    first_group: int,
) -> Sequence[Past]:
    """Returns where the episodes of each task begin; the first task's group has `first_group`."""
    starts = {}
    for environment in environments:
        config = environment.config
        starts[environment.label] = ExpertStarts(
            config.env.name,
            config.train.expert_starts,
            config.env.max_steps,
            config.sft.demonstrator.to_dict(),
            config.seed,
        )
    finders = [
        starts[task.environment].find_start(pools[task.environment], task, iteration, group)
        for group, task in enumerate(tasks, start=first_group)
    ]
    return await asyncio.gather(*finders)
