"""The policy in its environments: engine and worker processes of a run, ready to play episodes."""

import contextlib
import copy
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ml_collections import ConfigDict
from tqdm import tqdm

from gigpo_jax.env_bridge.agents import NO_EXAMPLES, Examples
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs import registry
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.engines import make_engine
from gigpo_jax.rollout.environment import RunEnvironment, episode_settings, make_pool
from gigpo_jax.rollout.episode import EpisodeRunner, EpisodeSettings, Runner
from gigpo_jax.rollout.groups import WHOLE_GROUPS, GroupEnd
from gigpo_jax.rollout.harness import HarnessRunner, make_endpoint
from gigpo_jax.rollout.rollout import rollout
from gigpo_jax.run import report
from gigpo_jax.trajectory import Trajectory

_DETAIL = re.compile(r"\d+|'[^']*'|\"[^\"]*\"")


class RolloutWorker:
    """Plays episodes; close it when done."""

    def __init__(
        self,
        config: ConfigDict,
        policy: Policy,
        params: Any,
        *,
        environments: Sequence[RunEnvironment],
        version: int,
        folder: Path,
        examples: Mapping[str, Examples] = MappingProxyType({}),
    ) -> None:
        """Starts the worker processes and makes the engine, as `make_engine`.

        `examples` are those of prompts, by the label of the environment.

        Raises:
          InputError: the engine or an environment cannot be had.
        """
        self._environments, self.tokenizer, self._examples = environments, policy.tokenizer, examples
        self._vision = policy.config.vision
        self._told: set[str] = set()
        with contextlib.ExitStack() as opened:
            self.pools = {
                each.label: opened.enter_context(make_pool(each, config.engine.slots)) for each in environments
            }
            self.engine = make_engine(config, policy, params, version=version, folder=folder)
            opened.callback(self.engine.close)
            self._endpoint: Any = None
            if any(map(_is_harness, environments)):
                self._endpoint = make_endpoint(config, self.engine, self.tokenizer, secrets.token_urlsafe(24))
                opened.callback(self._endpoint.close)
            self._opened = opened.pop_all()

    async def play(
        self,
        tasks: Sequence[Task],
        *,
        group_size: int,
        iteration: int,
        temperature: float,
        title: str,
        first_group: int = 0,
        pasts: Sequence[Sequence[str]] | None = None,
        ends: GroupEnd = WHOLE_GROUPS,
    ) -> list[Trajectory]:
        """Plays `group_size` episodes of each task, of up to `eval.trials` trials each.

        Arguments as for `rollout`; `title` is shown beside the bar.
        """
        stops = self.tokenizer.stop_token_ids
        settings = {
            each.label: episode_settings(
                each.config,
                temperature=temperature,
                stop_token_ids=stops,
                examples=self._examples.get(each.label, NO_EXAMPLES),
            )
            for each in self._environments
        }
        episodes = group_size * sum(settings[task.environment].trials for task in tasks)
        with tqdm(total=episodes, desc=title, unit="ep", leave=False, disable=None) as bar:

            def on_attempt(trajectory: Trajectory) -> None:
                if trajectory.aborted:
                    self._tell(trajectory)
                if trajectory.replayed or not trajectory.aborted:
                    bar.update()

            return await rollout(
                tasks,
                {
                    each.label: (self._runner(each, settings[each.label], on_attempt), self.pools[each.label])
                    for each in self._environments
                },
                group_size=group_size,
                iteration=iteration,
                first_group=first_group,
                pasts=pasts,
                ends=ends,
            )

    def _runner(
        self, environment: RunEnvironment, settings: EpisodeSettings, on_attempt: Callable[[Trajectory], None]
    ) -> Runner:
        if _is_harness(environment):
            return HarnessRunner(self._endpoint, settings, on_attempt)
        return EpisodeRunner(self.engine, self.tokenizer, settings, on_attempt, self._vision)

    def _tell(self, trajectory: Trajectory) -> None:
        """Prints why an episode was aborted, once for each kind: numbers and quoted text do not make a new kind."""
        kind = _DETAIL.sub("", trajectory.reason)
        if kind not in self._told:
            self._told.add(kind)
            report.say(f"aborted an episode of task {trajectory.task.id}: {trajectory.reason}")

    def snapshot(self) -> "RolloutWorker":
        """This worker with the weights of now, whatever `update_weights` sets later; the engine is in-process."""
        other = copy.copy(self)
        other.engine = self.engine.snapshot()
        return other

    def update_weights(self, params: Any, version: int) -> None:
        """Samples from other parameters from now on."""
        self.engine.update_weights(params, version)

    def close(self) -> None:
        """Stops the endpoint, the engine and the worker processes."""
        self._opened.close()


def _is_harness(environment: RunEnvironment) -> bool:
    return registry.spec(environment.config.env.name).harness
