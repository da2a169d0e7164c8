"""Evaluations of a training run on its panel."""

from collections.abc import Sequence
from pathlib import Path

import jax
from ml_collections import ConfigDict

from gigpo_jax.core.files import write_json
from gigpo_jax.rollout.environment import RunEnvironment
from gigpo_jax.rollout.evaluator import Evaluator, panel_tasks
from gigpo_jax.rollout.results import collect_outcomes, panel_metrics, panel_record
from gigpo_jax.rollout.worker import RolloutWorker
from gigpo_jax.run.workdir_names import EVALUATIONS
from gigpo_jax.trajectory import Trajectory


class PanelEvaluation:
    """Plays the panel of a run with its worker, and keeps the results in the run's folder."""

    def __init__(
        self, config: ConfigDict, environments: Sequence[RunEnvironment], workdir: Path
    ) -> None:
        """Reads the panel; raises InputError as `panel_tasks`."""
        selection = panel_tasks(environments)
        assert selection is not None, "the run has no panel"
        self._panel, self._tasks = selection
        self._config = config
        self._folder = workdir / EVALUATIONS

    async def play(self, worker: RolloutWorker, *, in_full: bool) -> dict[str, list[Trajectory]]:
        """Plays this host's share of the panel; in full: greedily too, with `eval.greedy`."""
        greedy = self._config.eval.greedy and in_full
        return await Evaluator(self._config, worker, self._tasks).play(greedy=greedy)

    def record(self, done: int, played: dict[str, list[Trajectory]]) -> dict[str, float]:
        """Writes the results after `done` iterations; returns their metrics."""
        # Of all hosts, and equal on each.
        results = {
            decoding: collect_outcomes(trajectories, self._tasks)
            for decoding, trajectories in played.items()
        }
        if jax.process_index() == 0:
            path = self._folder / f"iteration_{done:06d}.json"
            write_json(path, panel_record(self._panel, self._tasks, done, results))
        return panel_metrics(results)
