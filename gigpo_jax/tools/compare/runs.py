"""Reads finished runs from their folders, refuses incomparable ones, and sorts them into arms.

An arm is a set of runs that differ in their seed alone.
"""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.config.keys import KEYS
from gigpo_jax.config.removed_keys import with_defaults
from gigpo_jax.config.saved import affects_results
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import read_object
from gigpo_jax.run.machine_types import read_types
from gigpo_jax.run.saved_runs import read_records
from gigpo_jax.run.workdir_names import EVALUATIONS

# The task, the model and the budget must be equal. The algorithm, its settings, settings of the
# optimizer, the anchor and the forks may differ: they are compared.
EQUAL_SECTIONS = ("env.", "model.", "sampling.", "train.", "eval.")
# Forks take the place of whole episodes, so the number of episodes stays equal.
_COMPARED = re.compile(r"env\.(mix\.\w+\.)?(options\.)?anchor|train\.fork(s|_choice)")
# First in the label of an arm.
LABEL_KEYS = ("rl.algorithm", "rl.preset", "env.anchor", "env.options.anchor", "train.forks")


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
      folder: Workdir.
      config: Config, flat, with dotted keys.
      panel: Name of the panel, and sha256 of its content.
      tasks: Ids of the panel's tasks, [G].
      iterations: Iterations of the evaluations, [E] i64.
      won: Outcomes of sampled decoding, [E, G] f64: 1 for a task that was won, 0 for a lost one,
        NaN for an aborted episode.
      env_steps: Environment steps of the training episodes up to each evaluation, [E] f64.
      seconds: Wall time of the iterations up to each evaluation, [E] f64.
      machines: Types of the machines that it ran on; none if it has no record of them.
    """

    folder: Path
    config: dict[str, Any]
    panel: tuple[str, str]
    tasks: tuple[str, ...]
    iterations: np.ndarray
    won: np.ndarray
    env_steps: np.ndarray
    seconds: np.ndarray
    machines: tuple[str, ...] = ()

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config["seed"])


@dataclass(frozen=True)
class Arm:
    """Runs that differ in their seed alone, sorted by it."""

    label: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs."""
        return tuple(run.seed for run in self.runs)

    def stack_outcomes(self, seeds: Sequence[int] | None = None) -> np.ndarray:
        """Stacks `Run.won` of the given seeds, by default all, as [S, E, G] f64."""
        outcomes = {run.seed: run.won for run in self.runs}
        return np.stack([outcomes[seed] for seed in seeds or self.seeds])


def read_run(folder: Path) -> Run:
    """Reads a workdir.

    Raises:
      InputError: There is no run, it was not evaluated, or it is not finished.
    """
    content, records = read_records(folder)
    # An older run counts with the defaults of keys that are newer than it.
    config = with_defaults(content, KEYS)
    # The tasks themselves are compared: 0 (all) and their number are the same.
    config.pop("eval.tasks")
    metrics = {record["step"]: record for record in records}
    paths = sorted((folder / EVALUATIONS).glob("iteration_*.json"))
    evaluations = [read_object(path, fix="give another workdir") for path in paths]
    # A run that was killed after an evaluation resumes before it: its metrics decide.
    evaluations = [evaluation for evaluation in evaluations if evaluation["iteration"] in metrics]
    if not evaluations:
        raise InputError("has no evaluations", key=folder, fix="train with config.eval.panel")

    iterations = np.array([evaluation["iteration"] for evaluation in evaluations])
    last_iteration = config["train.iterations"]
    if iterations[-1] != last_iteration:
        raise InputError(
            f"stopped after iteration {max(metrics)} of {last_iteration}",
            key=folder,
            fix="run the same command, which continues it",
        )
    outcomes = [evaluation["results"]["sampled"]["won"] for evaluation in evaluations]
    return Run(
        folder=folder,
        config=config,
        panel=(evaluations[-1]["panel"], evaluations[-1]["sha256"]),
        tasks=tuple(evaluations[-1]["tasks"]),
        iterations=iterations,
        won=np.array(outcomes, dtype=float),  # None, an aborted episode, becomes NaN
        env_steps=_sum_metric(metrics, iterations, "rollout/steps"),
        seconds=_sum_metric(metrics, iterations, "time/iteration"),
        machines=read_types(folder),
    )


def _sum_metric(
    metrics: dict[int, dict[str, Any]], iterations: np.ndarray, name: str
) -> np.ndarray:
    """Sums of a metric up to each iteration, [E] f64."""
    sums = []
    for iteration in iterations:
        values = [record.get(name) for step, record in metrics.items() if step <= iteration]
        # A metric may be missing or null in an iteration.
        sums.append(sum(value or 0.0 for value in values))
    return np.array(sums)


def check_comparable(runs: Sequence[Run]) -> None:
    """Refuses runs that differ in task, model or budget.

    Raises:
      InputError: The message has the values of both runs.
    """
    for run in runs[1:]:
        differences = _list_differences(runs[0], run)
        if differences:
            raise InputError(
                f"cannot be compared: {'; '.join(differences)}",
                key=f"{runs[0].folder} and {run.folder}",
            )


def _list_differences(first: Run, second: Run) -> list[str]:
    """The differences that make two runs incomparable."""
    differences = []
    for key in sorted(first.config | second.config):
        value = first.config.get(key)
        second_value = second.config.get(key)
        # Keys that differ and may differ are what the comparison is about.
        if value != second_value and must_equal(key):
            differences.append(f"{key}={value!r} and {second_value!r}")
    if first.panel != second.panel or first.tasks != second.tasks:
        name, sha256 = first.panel
        second_name, second_sha256 = second.panel
        # A user's panel may change under its name.
        differences.append(f"panel {name} ({sha256[:12]}) and {second_name} ({second_sha256[:12]})")
    # Curves are compared point by point.
    elif not np.array_equal(first.iterations, second.iterations):
        differences.append(
            f"evaluated after {first.iterations.tolist()} and {second.iterations.tolist()}"
        )
    return differences


def must_equal(key: str) -> bool:
    """Whether runs with different values of a key are incomparable."""
    return key.startswith(EQUAL_SECTIONS) and not _COMPARED.fullmatch(key) and affects_results(key)


def group_arms(runs: Sequence[Run]) -> list[Arm]:
    """Sorts runs into arms, ordered by their first runs.

    Raises:
      InputError: Two runs of an arm have the same seed.
    """
    varying_keys = _list_varying_keys(runs)
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        # Values may be lists, which are no keys; and repr tells 1 from 1.0 and True.
        settings = tuple(repr(run.config.get(key)) for key in varying_keys)
        groups.setdefault(settings, []).append(run)
    labels = _make_labels([group[0] for group in groups.values()], varying_keys)
    arms = []
    for label, group in zip(labels, groups.values()):
        arm_runs = sorted(group, key=lambda run: run.seed)
        for run, next_run in itertools.pairwise(arm_runs):
            if run.seed == next_run.seed:
                raise InputError(
                    f"the same config and seed={run.seed}",
                    key=f"{run.folder} and {next_run.folder}",
                    fix="give one of them",
                )
        arms.append(Arm(label, tuple(arm_runs)))
    return arms


def _list_varying_keys(runs: Sequence[Run]) -> list[str]:
    """The keys, without the seed, that differ between runs."""
    keys = set[str]().union(*(run.config for run in runs)) - {"seed"}
    varying_keys = []
    for key in sorted(keys):
        values = {repr(run.config.get(key)) for run in runs}
        if len(values) > 1 and affects_results(key):
            varying_keys.append(key)
    return varying_keys


def _make_labels(runs: Sequence[Run], varying_keys: Sequence[str]) -> list[str]:
    """Short names of arms: the algorithm and the fewest keys that tell the arms apart.

    A key with its default value is left out, as a name says what differs.
    """
    keys = [key for key in LABEL_KEYS if key in varying_keys and key != "rl.algorithm"]
    # The keys that readers look for first, then all others, by name.
    keys += [key for key in varying_keys if key not in LABEL_KEYS]
    labels = [str(run.config["rl.algorithm"]) for run in runs]
    for key in keys:
        longer_labels = [
            label + _describe_difference(key, run.config.get(key))
            for label, run in zip(labels, runs)
        ]
        # The key tells no further arms apart.
        if len(set(longer_labels)) == len(set(labels)):
            continue
        counts = Counter(labels)
        labels = [
            # A label that is unique already stays short.
            label if counts[label] == 1 else longer_label
            for label, longer_label in zip(labels, longer_labels)
        ]
    return labels


def _describe_difference(key: str, value: Any) -> str:
    """A key and its value for a label; "" for the default, or an option that is not set."""
    default = KEYS[key].default if key in KEYS else None
    if value == default:
        return ""
    return f" {key.split('.')[-1]}={value}"
