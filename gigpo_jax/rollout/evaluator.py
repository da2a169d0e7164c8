"""A panel's tasks, and a worker that plays them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
from ml_collections import ConfigDict

from gigpo_jax.config.mix import name_member_keys
from gigpo_jax.env_bridge.panels import Panel, check_panel, find_panel
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.panels import panel_folder
from gigpo_jax.rollout.environment import RunEnvironment
from gigpo_jax.rollout.mixed_tasks import join_panels
from gigpo_jax.rollout.rollout import RolloutJob
from gigpo_jax.rollout.worker import RolloutWorker
from gigpo_jax.trajectory import Trajectory


def panel_tasks(environments: Sequence[RunEnvironment]) -> tuple[Panel, tuple[Task, ...]] | None:
    """Returns the panel `eval.panel`, of all environments in order, and its tasks, or None.

    Raises:
      InputError: there is no such panel, or its tasks are missing or differ.
    """
    selections = {
        environment.label: _environment_panel(environment)
        for environment in environments
        if environment.config.eval.panel
    }
    if not selections:
        return None
    # A run with one environment has no labels: ids and panel stay as published.
    if "" in selections:
        return selections[""]
    panel = join_panels({label: panel for label, (panel, _) in selections.items()})
    return panel, tuple(task for _, tasks in selections.values() for task in tasks)


def _environment_panel(environment: RunEnvironment) -> tuple[Panel, tuple[Task, ...]]:
    """The panel of one environment, and its first `eval.tasks` tasks."""
    config = environment.config
    with name_member_keys(environment.label):
        folder = panel_folder(config.env.name)
        panel = find_panel(config.eval.panel, config.env.name, folder, key="config.eval.panel")
        env = environment.make()
        try:
            tasks = check_panel(panel, env)
        finally:
            env.close()
    selection = tasks[: config.eval.tasks or None]
    return panel, tuple(replace(task, environment=environment.label) for task in selection)


class Evaluator:
    """Player of a panel's tasks with a worker's weights."""

    def __init__(self, config: ConfigDict, worker: RolloutWorker, tasks: Sequence[Task]) -> None:
        """Takes the tasks of `panel_tasks`."""
        self._config = config
        self._worker = worker
        self._tasks = tasks

    async def play(
        self,
        *,
        greedy: bool,
        on_decoding: Callable[[dict[str, list[Trajectory]]], None] = lambda played: None,
    ) -> dict[str, list[Trajectory]]:
        """Plays this host's share of all trials.

        Args:
          greedy: Whether to play greedily too.
          on_decoding: Function to call with the trajectories so far, after each decoding but the
            last.

        Returns:
          Trajectories by decoding, "sampled" and "greedy".
        """
        temperatures = {"sampled": self._config.eval.temperature}
        if greedy:
            temperatures["greedy"] = 0.0
        hosts = jax.process_count()
        host = jax.process_index()
        # Contiguous shares. `first_group` is the position in the panel, so that keys and tasks do
        # not depend on the number of hosts.
        first = len(self._tasks) * host // hosts
        end = len(self._tasks) * (host + 1) // hosts
        trajectories = {}
        for number, (decoding, temperature) in enumerate(temperatures.items()):
            trajectories[decoding] = await self._worker.play(
                # Negative: no training iteration has these keys, and every evaluation draws the
                # same.
                RolloutJob(self._tasks[first:end], 1, iteration=-1 - number, first_group=first),
                temperature=temperature,
                title=f"panel, {decoding}",
            )
            if number + 1 < len(temperatures):
                on_decoding(trajectories)
        return trajectories
