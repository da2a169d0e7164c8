"""The policy in its environments: engine and worker processes of a run, ready to play episodes."""

import asyncio
import contextlib
import copy
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from gigpo_jax.envs import registry
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.engines import make_engine
from gigpo_jax.rollout.environment import (
    RunEnvironment,
    episode_settings,
    make_pool,
)
from gigpo_jax.rollout.episode import EpisodeRunner
from gigpo_jax.rollout.episode_parts import EpisodePart
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.rollout.rollout import RolloutJob, Runner, rollout
from gigpo_jax.run.progress import Bar, show_progress, show_stage
from gigpo_jax.trajectory import Trajectory

if TYPE_CHECKING:
    from gigpo_jax.env_bridge.agents import Examples

COUNT_S = 1.0  # time between two counts of tokens beside a bar


class RolloutWorker:
    """Plays episodes; close it when done.

    Attributes:
      parts: Parts of every episode, before the parts of its config; see `EpisodeSettings`.
    """

    parts: Sequence[Callable[[], EpisodePart | None]] = ()

    def __init__(
        self,
        config: ConfigDict,
        policy: Policy,
        params: Any,
        *,
        environments: Sequence[RunEnvironment],
        version: int,
        folder: Path,
        examples: "Mapping[str, Examples]" = MappingProxyType({}),
    ) -> None:
        """Starts the worker processes and makes the engine.

        Args:
          config, policy, params, version, folder: See `make_engine`.
          environments: Environments of the run.
          examples: Examples in prompts, by the label of the environment.

        Raises:
          InputError: the engine or an environment cannot start.
        """
        self.tokenizer = policy.tokenizer
        self._environments = environments
        self._examples = examples
        self._vision = policy.config.vision
        self._reported_kinds: set[str] = set()
        # A failure on the way closes what was started, the newest first; `pop_all`
        # keeps it on success.
        with contextlib.ExitStack() as resources:
            self.pools = {}
            with show_stage("starting the environments"):
                for environment in environments:
                    # In each pool as many as the engine has places: all running episodes may be of
                    # one environment.
                    pool = make_pool(environment, config.engine.slots)
                    self.pools[environment.label] = resources.enter_context(pool)
            self.engine = make_engine(config, policy, params, version=version, folder=folder)
            resources.callback(self.engine.close)
            self._endpoint: Any = None
            # Only runs with agent programs open a port.
            if any(_is_harness(environment) for environment in environments):
                from gigpo_jax.rollout.harness import make_endpoint

                self._endpoint = make_endpoint(
                    config, self.engine, self.tokenizer, secrets.token_urlsafe(24)
                )
                # Closed before the engine, so that no call reaches a closed engine.
                resources.callback(self._endpoint.close)
            self._resources = resources.pop_all()

    async def play(
        self,
        job: RolloutJob,
        *,
        temperature: float,
        title: str,
        is_training: bool = False,
    ) -> list[Trajectory]:
        """Plays the episodes of a job, each with up to `eval.trials` trials.

        Args:
          job: What is played.
          temperature: Sampling temperature; 0 is greedy.
          title: Text beside the progress bar.
          is_training: Whether `step_limit` of the iteration ends the episodes, which have the parts
            of training too; else `env.max_steps` ends them.
        """
        settings = {}
        for environment in self._environments:
            label = environment.label
            settings[label] = self._settings(environment, temperature, is_training)
            if is_training and environment.config.env.max_steps_iterations:
                from gigpo_jax.rollout.step_limits import step_limit

                max_steps = step_limit(environment.config.env, job.iteration)
                settings[label] = replace(settings[label], max_steps=max_steps)
        trials = sum(settings[task.environment].trials for task in job.tasks)
        # Groups that are replaced add episodes: their number is not known.
        adds_groups = job.ends is not None and job.ends.adds_groups
        total = None if adds_groups else job.group_size * trials
        with show_progress(title, total=total, unit="episodes") as bar:

            def on_attempt(trajectory: Trajectory) -> None:
                if trajectory.aborted:
                    from gigpo_jax.rollout.aborts import report_abort

                    report_abort(trajectory, self._reported_kinds)
                # A first attempt that was aborted is played again: the episode counts once.
                if trajectory.replayed or not trajectory.aborted:
                    bar.update()

            players = {}
            for environment in self._environments:
                label = environment.label
                runner = self._make_runner(environment, settings[label], on_attempt)
                players[label] = (runner, self.pools[label])
            counting = asyncio.create_task(self._count_tokens(bar))
            try:
                return await rollout(job, players)
            finally:
                counting.cancel()

    async def _count_tokens(self, bar: Bar) -> None:
        """Shows the tokens of prompts and responses beside the episodes, which may take minutes."""
        # A snapshot has no counter of its own.
        start = getattr(self.engine, "generated_tokens", None)
        if start is None:
            return
        # The first response ends long after the first prompts were taken.
        prompts_start = self.engine.prompt_tokens
        start_s = time.monotonic()
        while True:
            await asyncio.sleep(COUNT_S)
            prompts = self.engine.prompt_tokens - prompts_start
            tokens = self.engine.generated_tokens - start
            rate = tokens / (time.monotonic() - start_s)
            bar.note(f"{prompts:,} prompt tokens, {tokens:,} sampled, {rate:.0f} tokens/s")

    def _settings(
        self, environment: RunEnvironment, temperature: float, is_training: bool
    ) -> EpisodeSettings:
        settings = episode_settings(
            environment.config,
            temperature=temperature,
            stop_token_ids=self.tokenizer.stop_token_ids,
            examples=self._examples.get(environment.label),
            is_training=is_training,
        )
        return replace(settings, parts=(*self.parts, *settings.parts))

    def make_writers(self, temperature: float) -> dict[str, EpisodeRunner]:
        """Makes writers of texts about finished episodes of training, by environment."""
        writers = {}
        for environment in self._environments:
            settings = self._settings(environment, temperature, is_training=True)
            writers[environment.label] = EpisodeRunner(
                self.engine, self.tokenizer, settings, vision=self._vision
            )
        return writers

    def _make_runner(
        self,
        environment: RunEnvironment,
        settings: EpisodeSettings,
        on_attempt: Callable[[Trajectory], None],
    ) -> Runner:
        if _is_harness(environment):
            from gigpo_jax.rollout.harness import HarnessRunner

            return HarnessRunner(self._endpoint, settings, on_attempt)
        return EpisodeRunner(self.engine, self.tokenizer, settings, on_attempt, self._vision)

    def snapshot(self) -> "RolloutWorker":
        """Returns a copy that keeps its weights at an `update_weights` of this worker.

        Only the in-process engine has snapshots.
        """
        # The pools are shared: only the weights are fixed.
        worker = copy.copy(self)
        worker.engine = self.engine.snapshot()
        return worker

    def update_weights(self, params: Any, version: int) -> None:
        """Samples from other parameters from now on."""
        self.engine.update_weights(params, version)

    def close(self) -> None:
        """Stops the endpoint, the engine and the worker processes."""
        self._resources.close()


def _is_harness(environment: RunEnvironment) -> bool:
    return registry.spec(environment.config.env.name).harness
