"""One measurement: rollouts, their replays, continuations and grades, in a folder from which a stopped one resumes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.resolve import with_defaults
from gigpo_jax.config.tree import flat
from gigpo_jax.credit import grades
from gigpo_jax.credit.estimates import Estimate
from gigpo_jax.credit.report import Row
from gigpo_jax.credit.states import State, advantages
from gigpo_jax.errors import InputError
from gigpo_jax.files import read_object, write_json
from gigpo_jax.rollout.statistics import ambiguous_anchors
from gigpo_jax.trajectory import Step, Trajectory

SETTINGS = "settings.json"
_PLAYED = ("seed", "env", "model", "engine.dtype", "sampling", "train.groups", "train.group_size")


def claim(folder: Path, config: ConfigDict, continuations: int) -> None:
    """Makes the folder of a measurement, or checks that what it holds was played with the same settings.

    Raises:
      InputError: other settings; the message names the keys that differ.
    """
    values = flat(config.to_dict())
    free = ("env.workers", "env.start_timeout_s", "env.step_timeout_s", "env.options.anchor", "env.options.regret")
    ours = {key: v for key, v in values.items() if key.startswith(_PLAYED) and key not in free}
    ours["continuations"] = continuations
    path = folder / SETTINGS
    if path.exists():
        theirs = with_defaults(read_object(path, "remove its folder to measure anew"), ours)
        differing = [
            f"{key}={ours.get(key)!r} (there: {theirs.get(key)!r})"
            for key in sorted(ours.keys() | theirs.keys())
            if ours.get(key) != theirs.get(key)
        ]
        if differing:
            raise InputError(
                f"{folder}: holds a measurement with other settings; use the same values or remove it: "
                + "; ".join(differing)
            )
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, ours)


@dataclass(frozen=True)
class Measurement:
    """What was measured.

    Attributes:
      steps: N of them.
      rows: [N] i, their places among all steps of the rollouts.
      own: advantages of the policy as it is, with standard errors.
      halves: two [N] f64, the same from every second continuation.
      regret: [N] f64, as in `trajectory.Turn`; NaN where the environment does not tell.
    """

    steps: Sequence[Step]
    rows: np.ndarray
    own: grades.Measured
    halves: tuple[np.ndarray, np.ndarray]
    regret: np.ndarray


def measured(
    trajectories: Sequence[Trajectory],
    steps: Sequence[Step],
    rows: Sequence[int],
    returns: Mapping[State, np.ndarray],
) -> Measurement:
    """Puts a measurement together from the returns of all states around the chosen steps."""
    chosen = [steps[row] for row in rows]
    first, second = (
        advantages(trajectories, chosen, {state: values[half::2] for state, values in returns.items()})[0]
        for half in (0, 1)
    )
    return Measurement(
        steps=chosen,
        rows=np.array(rows),
        own=grades.Measured(*advantages(trajectories, chosen, returns), np.array([s.group for s in chosen])),
        halves=(first, second),
        regret=np.array([np.nan if step.turn.regret is None else step.turn.regret for step in chosen]),
    )


def graded(
    found: Sequence[Estimate],
    measurement: Measurement,
    labels: Mapping[str, Mapping[str, np.ndarray]],
    seed: int,
    *,
    group_size: int | None = None,
    gradients: Callable[[np.ndarray], np.ndarray] | None = None,
    progress: Callable[[], object] = lambda: None,
) -> list[Row]:
    """Grades every estimate.

    Args:
      found: estimates of all steps.
      measurement: of some of them.
      labels: anchor option -> `slices` of all steps with these anchors.
      seed: of the resamples.
      group_size: from how many episodes of each task group the estimates are; None: all.
      gradients: as from `group_gradients`, for the measured steps; None: not compared.
      progress: called after every estimate.
    """
    own, rows, out = measurement.own, measurement.rows, []
    baseline = next(grades.resampled(e.values[rows], own, seed) for e in found if "grpo" in e.names)["corrected"]
    halves = [gradients(half) for half in measurement.halves] if gradients else []
    for estimate in found:
        values = estimate.values[rows]
        result = grades.grade(values, own, seed)
        difference = grades.resampled(values, own, seed)["corrected"] - baseline
        if "grpo" not in estimate.names:
            result["difference"] = grades.interval(difference)
        if gradients:
            result |= grades.cosine(gradients(values), halves, seed)
        if np.isfinite(measurement.regret).any():
            result["optimal"] = _against_optimal(values, measurement, seed)
        every = labels.get(estimate.anchor) or next(iter(labels.values()))
        mine = {name: label[rows] for name, label in every.items()}
        out.append(Row(estimate, group_size, values, mine, result, grades.by_slice(values, own, mine, seed)))
        progress()
    return out


def slices(steps: Sequence[Step]) -> dict[str, np.ndarray]:
    """Labels of all steps: task type, number of the step, size of the anchor group, ambiguity of the anchor."""
    keys = [(step.group, step.turn.anchor) for step in steps]
    sizes = Counter(keys)
    labels = {
        "task_type": np.array([step.type for step in steps]),
        "step": np.array([_range(step.step + 1) for step in steps]),
        "anchor_group_size": np.array([_range(sizes[key]) for key in keys]),
    }
    ambiguous = ambiguous_anchors(steps)
    if len(ambiguous) == len(steps):  # the environment lists its actions
        labels["ambiguous_anchor"] = np.where(ambiguous, "yes", "no")
    return labels


def _range(number: int) -> str:
    """1, 2-3, 4-7, 8-15, ..."""
    low = 1 << (number.bit_length() - 1)
    return "1" if low == 1 else f"{low}-{2 * low - 1}"


def _against_optimal(values: np.ndarray, measurement: Measurement, seed: int) -> grades.Interval:
    """Rank correlation with the regret of the action, its sign turned."""
    known = np.isfinite(measurement.regret)
    optimal = grades.Measured(-measurement.regret[known], np.zeros(known.sum()), measurement.own.group[known])
    return grades.grade(values[known], optimal, seed)["spearman"]
