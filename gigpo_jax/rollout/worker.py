"""The policy in its environments: engine and worker processes of a run, ready to play episodes."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from tqdm import tqdm

from gigpo_jax.env_bridge.agents import NO_EXAMPLES, Examples
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.engines import make_engine
from gigpo_jax.rollout.environment import episode_settings, make_pool
from gigpo_jax.rollout.groups import WHOLE_GROUPS, GroupEnd
from gigpo_jax.rollout.rollout import EpisodeRunner, rollout
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
        options: dict[str, Any],
        version: int,
        folder: Path,
        examples: Examples = NO_EXAMPLES,
    ) -> None:
        """Starts the worker processes and makes the engine, as `make_engine`.

        `options` are what the environment is built with (`environment.env_options`), `examples` those of prompts.

        Raises:
          InputError: the engine or the environment cannot be had.
        """
        self._config, self.tokenizer, self._examples = config, policy.tokenizer, examples
        self._vision = policy.config.vision
        self._told: set[str] = set()
        self.pool = make_pool(config, options, config.engine.slots)
        try:
            self.engine = make_engine(config, policy, params, version=version, folder=folder)
        except BaseException:
            self.pool.close()
            raise

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
        settings = episode_settings(
            self._config, temperature=temperature, stop_token_ids=stops, examples=self._examples
        )
        with tqdm(
            total=len(tasks) * group_size * settings.trials, desc=title, unit="ep", leave=False, disable=None
        ) as bar:

            def on_attempt(trajectory: Trajectory) -> None:
                if trajectory.aborted:
                    self._tell(trajectory)
                if trajectory.replayed or not trajectory.aborted:
                    bar.update()

            return await rollout(
                tasks,
                EpisodeRunner(self.engine, self.tokenizer, settings, on_attempt, self._vision),
                self.pool,
                group_size=group_size,
                iteration=iteration,
                first_group=first_group,
                pasts=pasts,
                ends=ends,
            )

    def _tell(self, trajectory: Trajectory) -> None:
        """Prints why an episode was aborted, once for each kind: numbers and quoted text do not make a new kind."""
        kind = _DETAIL.sub("", trajectory.reason)
        if kind not in self._told:
            self._told.add(kind)
            report.say(f"aborted an episode of task {trajectory.task.id}: {trajectory.reason}")

    def update_weights(self, params: Any, version: int) -> None:
        """Samples from other parameters from now on."""
        self.engine.update_weights(params, version)

    def close(self) -> None:
        """Stops the engine and the worker processes."""
        self.engine.close()
        self.pool.close()
