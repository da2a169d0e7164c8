"""Rollouts and continuations of a policy, kept in a folder; nothing is played twice."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from gigpo_jax.batching import Sample, step_samples, value_columns
from gigpo_jax.columns.computed import computed_columns
from gigpo_jax.columns.text_critic import TextCritic
from gigpo_jax.columns.token_logprobs import TokenLogprobs
from gigpo_jax.credit.continuations import continue_from, read_returns
from gigpo_jax.credit.states import State
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner import chosen, objective, step_credit
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.environment import RunEnvironment
from gigpo_jax.rollout.record import Rollouts, read_rollouts, saved, write_rollouts
from gigpo_jax.rollout.worker import RolloutWorker
from gigpo_jax.trajectory import Trajectory, finished_steps

ROLLOUTS, RETURNS = "rollouts.jsonl.gz", "returns.jsonl"
_KEYS = -3  # in place of an iteration; training has numbers from 0, evaluation -1 and -2


class Sampler:
    """Plays episodes with one set of weights; engine and environments start when something is left to play."""

    def __init__(
        self,
        config: ConfigDict,
        policy: Policy,
        params: Any,
        *,
        environment: RunEnvironment,
        version: int,
        logprobs: Callable[[Sequence[Sample]], TokenLogprobs],
        critic: TextCritic | None,
        values: Callable[[Sequence[Sample]], list[np.ndarray]] | None,
    ) -> None:
        """Takes what `RolloutWorker` takes, a function that gives log-probabilities, and a critic of one kind."""
        self._config, self._policy, self._params = config, policy, params
        self._environment, self._version, self._logprobs, self._critic = environment, version, logprobs, critic
        self._values = values
        self._worker: RolloutWorker | None = None

    def _started_worker(self, folder: Path) -> RolloutWorker:
        if self._worker is None:
            self._worker = RolloutWorker(
                self._config,
                self._policy,
                self._params,
                environments=[self._environment],
                version=self._version,
                folder=folder / "servers",
            )
        return self._worker

    async def rollouts(self, folder: Path, tasks: Sequence[Task]) -> Rollouts:
        """`train.group_size` episodes of each task, with the keys of the next training iteration."""
        path, config = folder / ROLLOUTS, self._config
        if not path.exists():
            temperature = config.sampling.temperature
            trajectories = await self._started_worker(folder).play(
                tasks,
                group_size=config.train.group_size,
                iteration=self._version,
                temperature=temperature,
                title="episodes",
            )
            steps = finished_steps(trajectories)
            tokenizer, samples = self._policy.tokenizer, step_samples(steps)
            columns = computed_columns(chosen(config).needs, steps, self._logprobs, config, tokenizer, self._critic)
            if self._values is not None:
                columns |= value_columns(self._values(samples), config.sampling.max_response_tokens)
            credit = step_credit(config, objective(config)[0], steps, columns)[1]
            how = {"gamma": config.rl.gamma, "iteration": self._version, "temperature": temperature}
            entropies = self._logprobs(step_samples(steps)).entropy
            write_rollouts(path, saved(trajectories, credit, entropies, decode=tokenizer.decode, **how))
        return read_rollouts(path)

    async def returns(self, folder: Path, states: Sequence[State], number: int) -> dict[State, np.ndarray]:
        """The returns of `number` continuations of each state."""
        path, slots = folder / RETURNS, self._config.engine.slots
        done = read_returns(path, states)
        if len(done) == len(states):
            return dict(zip(states, done, strict=True))
        with tqdm(total=len(states), desc="states", unit="state", disable=None) as bar:

            async def play(tasks: Sequence[Task], **how: Any) -> list[Trajectory]:
                return await self._started_worker(folder).play(
                    tasks,
                    iteration=_KEYS,
                    temperature=self._config.sampling.temperature,
                    title="continuations",
                    **how,
                )

            return await continue_from(
                states, path, play, number=number, at_once=max(1, 8 * slots // number), progress=bar.update
            )

    def close(self) -> None:
        """Stops what was started."""
        if self._worker is not None:
            self._worker.close()
