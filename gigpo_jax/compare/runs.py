"""Reads finished runs from their folders, refuses those that cannot be compared, and sorts the rest into arms.

An arm is a set of runs that differ in their seed alone.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.config.keys import KEYS
from gigpo_jax.config.resolve import with_defaults
from gigpo_jax.errors import InputError

# What must be equal: the task, the model, and the budget. What may differ is what is compared: the algorithm, its
# settings, the optimizer's, and the anchor.
EQUAL = ("env.", "model.", "sampling.", "train.", "eval.")
COMPARED = ("env.options.anchor",)
LABELS = ("rl.algorithm", "rl.preset", "env.options.anchor")  # keys that come first in the label of an arm


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
      folder: its workdir.
      config: its config, flat, with dotted keys.
      panel: name of the panel, and sha256 of its content.
      tasks: ids of the panel's tasks, [G].
      iterations: [E] i, when it was evaluated.
      won: [E, G] f64, 1 for a task that was won, 0 for a lost one, NaN for an aborted episode; sampled decoding.
      env_steps: [E] f64, environment steps of the training episodes until then.
      seconds: [E] f64, wall time of the iterations until then.
    """

    folder: Path
    config: dict[str, Any]
    panel: tuple[str, str]
    tasks: tuple[str, ...]
    iterations: np.ndarray
    won: np.ndarray
    env_steps: np.ndarray
    seconds: np.ndarray

    @property
    def seed(self) -> int:
        """Of the run."""
        return int(self.config["seed"])


@dataclass(frozen=True)
class Arm:
    """Runs that differ in their seed alone, in the order of their seeds."""

    label: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the runs."""
        return tuple(run.seed for run in self.runs)

    def won(self, seeds: Sequence[int] | None = None) -> np.ndarray:
        """[S, E, G] f64, `Run.won` of the given seeds; default: all."""
        by_seed = {run.seed: run.won for run in self.runs}
        return np.stack([by_seed[seed] for seed in (self.seeds if seeds is None else seeds)])


def read_run(folder: Path) -> Run:
    """Reads a workdir.

    Raises:
      InputError: no run is there, it was not evaluated, or it is not finished.
    """
    try:
        config = with_defaults(json.loads((folder / "config.json").read_text(encoding="utf-8")), KEYS)
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        metrics = {record["step"]: record for record in map(json.loads, lines)}
        files = sorted((folder / "evaluations").glob("iteration_*.json"))
        found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: holds no run that can be read ({error}); give a workdir") from error
    found = [evaluation for evaluation in found if evaluation["iteration"] in metrics]
    if not found:
        raise InputError(f"{folder}: has no evaluations; train with config.eval.panel")
    iterations = np.array([evaluation["iteration"] for evaluation in found])
    last = config["train.iterations"]
    if iterations[-1] != last:
        raise InputError(f"{folder}: stopped after iteration {max(metrics)} of {last}; the same command continues it")
    won = [[np.nan if won is None else float(won) for won in e["results"]["sampled"]["won"]] for e in found]
    return Run(
        folder=folder,
        config=config,
        panel=(found[-1]["panel"], found[-1]["sha256"]),
        tasks=tuple(found[-1]["tasks"]),
        iterations=iterations,
        won=np.array(won),
        env_steps=_until(metrics, iterations, "rollout/steps"),
        seconds=_until(metrics, iterations, "time/iteration"),
    )


def _until(metrics: dict[int, dict[str, Any]], iterations: np.ndarray, name: str) -> np.ndarray:
    """The sum of a metric over the iterations until each of some."""
    return np.array([sum(record.get(name) or 0.0 for s, record in metrics.items() if s <= i) for i in iterations])


def check_comparable(runs: Sequence[Run]) -> None:
    """Refuses runs that differ in more than what is compared.

    Raises:
      InputError: another panel, other evaluations, or a key that must be equal; with the values of both.
    """
    first = runs[0]
    for other in runs[1:]:
        pairs = {key: (first.config.get(key), other.config.get(key)) for key in first.config | other.config}
        differing = [f"{key}={a!r} and {b!r}" for key, (a, b) in sorted(pairs.items()) if a != b and _must_equal(key)]
        if first.panel != other.panel or first.tasks != other.tasks:
            differing.append(
                f"panel {first.panel[0]} ({first.panel[1][:12]}) and {other.panel[0]} ({other.panel[1][:12]})"
            )
        elif not np.array_equal(first.iterations, other.iterations):
            differing.append(f"evaluated after {first.iterations.tolist()} and {other.iterations.tolist()}")
        if differing:
            raise InputError(f"{first.folder} and {other.folder} cannot be compared: {'; '.join(differing)}")


def _must_equal(key: str) -> bool:
    return key.startswith(EQUAL) and key not in COMPARED and _matters(key)


def _matters(key: str) -> bool:
    """Whether a key decides what a run computes."""
    return key not in KEYS or not KEYS[key].may_change


def arms_of(runs: Sequence[Run]) -> list[Arm]:
    """Sorts runs into arms, in the order of their first runs.

    Raises:
      InputError: two runs of an arm have the same seed.
    """
    keys = sorted({key for run in runs for key in run.config if key != "seed" and _matters(key)})
    differing = [key for key in keys if len({repr(run.config.get(key)) for run in runs}) > 1]
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(repr(run.config.get(key)) for key in differing), []).append(run)
    labels = _labels([group[0] for group in groups.values()], differing)
    arms = [Arm(label, tuple(sorted(group, key=lambda r: r.seed))) for label, group in zip(labels, groups.values())]
    for arm in arms:
        for a, b in zip(arm.runs, arm.runs[1:]):
            if a.seed == b.seed:
                raise InputError(f"{a.folder} and {b.folder}: the same config and seed={a.seed}; give one of them")
    return arms


def _labels(runs: Sequence[Run], differing: Sequence[str]) -> list[str]:
    """Short names: the algorithm, and of the keys that differ as many as it takes to tell the arms apart."""
    labels = [str(run.config["rl.algorithm"]) for run in runs]
    for key in sorted(differing, key=lambda key: (key not in LABELS, LABELS.index(key) if key in LABELS else 0, key)):
        longer = [f"{label} {key.split('.')[-1]}={run.config.get(key)}" for label, run in zip(labels, runs)]
        if key != "rl.algorithm" and len(set(longer)) > len(set(labels)):
            alone = {label for label in labels if labels.count(label) == 1}
            labels = [label if label in alone else more for label, more in zip(labels, longer)]
    return labels
