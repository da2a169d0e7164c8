"""Rollouts and continuations of a policy, kept in a folder; nothing is played twice."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.learner.credit import step_credit
from gigpo_jax.learner.objective import make_objective
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.learner.signals.table import compute_columns
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.environment import RunEnvironment
from gigpo_jax.rollout.fork_starts import Forks
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.record import Rollouts, collect_rollouts, write_rollouts
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.rollout.worker import RolloutWorker
from gigpo_jax.run.progress import show_progress
from gigpo_jax.tools.credit.continuations import continue_from, read_returns
from gigpo_jax.tools.credit.states import State
from gigpo_jax.trajectory import Step, Trajectory, finished_steps

ROLLOUTS = "rollouts.jsonl.gz"
RETURNS = "returns.jsonl"


class PolicySampler:
    """Plays episodes with one set of weights; the first one starts engine and environments."""

    def __init__(
        self,
        config: ConfigDict,
        policy: Policy,
        params: Any,
        *,
        environment: RunEnvironment,
        version: int,
        signals: Sequence[Signal],
        score_steps: Callable[[Sequence[Step]], ScoredSteps],
    ) -> None:
        """Takes `RolloutWorker`'s arguments, and functions behind optional columns.

        Args:
          config: Resolved config.
          policy: Model and tokenizer.
          params: Weights that play.
          environment: Environment of the episodes.
          version: Version of the weights; it seeds the episodes.
          signals: Signals of the run's algorithm.
          score_steps: Function from steps to their scores under the weights.
        """
        self._config = config
        self._policy = policy
        self._params = params
        self._environment = environment
        self._version = version
        self._signals = signals
        self._score_steps = score_steps
        self._worker: RolloutWorker | None = None

    def _start_worker(self, folder: Path) -> RolloutWorker:
        # Only now: grading a complete folder again starts neither an engine nor environments.
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
        """Episodes of each task, with the next iteration's random keys."""
        path = folder / ROLLOUTS
        config = self._config
        if not path.exists():
            temperature = config.sampling.temperature
            job = RolloutJob(
                tasks,
                config.train.group_size,
                self._version,
                starts=Forks(config, tasks),
                shares_texts=True,
            )
            trajectories = await self._start_worker(folder).play(
                job, temperature=temperature, title="episodes"
            )
            # The file is a rollouts file as in training, with entropies and advantages, so
            # that `gigpo inspect` can show it.
            scored = self._score_steps(finished_steps(trajectories))
            columns = compute_columns(self._signals, scored)
            advantages = make_objective(config).advantages
            _, credit = step_credit(config, advantages, scored.steps, columns)
            records = collect_rollouts(
                trajectories,
                credit,
                scored.token_logprobs.entropy,
                decode=self._policy.tokenizer.decode,
                gamma=config.rl.gamma,
                iteration=self._version,
                temperature=temperature,
            )
            write_rollouts(path, records)
        # Read back even if just written: a fresh and a continued measurement see the same values.
        return read_rollouts(path)

    async def returns(
        self, folder: Path, states: Sequence[State], number: int
    ) -> dict[State, np.ndarray]:
        """The returns of `number` continuations of each state."""
        path = folder / RETURNS
        saved_returns = read_returns(path, states)
        # No progress bar and no worker for a folder that is complete.
        if len(saved_returns) == len(states):
            return dict(zip(states, saved_returns, strict=True))
        with show_progress("states", total=len(states), unit="states") as bar:

            async def play(job: RolloutJob) -> list[Trajectory]:
                temperature = self._config.sampling.temperature
                return await self._start_worker(folder).play(
                    job, temperature=temperature, title="continuations"
                )

            return await continue_from(
                states,
                path,
                play,
                number=number,
                # Eight episodes a slot: the slots stay busy while the last long episodes of a batch
                # end, and a stop loses little.
                at_once=max(1, 8 * self._config.engine.slots // number),
                progress=bar.update,
            )

    def close(self) -> None:
        """Stops what was started."""
        if self._worker is not None:
            self._worker.close()
