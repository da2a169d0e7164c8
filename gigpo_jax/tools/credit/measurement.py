"""One measurement: the folder from which a stopped one resumes, its values and its grades."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.keys import flatten
from gigpo_jax.config.removed_keys import with_defaults
from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import read_object, write_json
from gigpo_jax.rollout.statistics import ambiguous_anchors
from gigpo_jax.tools.credit import grades
from gigpo_jax.tools.credit.estimates import Estimate
from gigpo_jax.tools.credit.intervals import Interval
from gigpo_jax.tools.credit.report import Row
from gigpo_jax.tools.credit.states import State, measured_advantages
from gigpo_jax.trajectory import Step, Trajectory

SETTINGS = "settings.json"
# The keys that decide what is played, and the keys among them that do not change it.
_DECISIVE = (
    "seed",
    "env",
    "model",
    "engine.dtype",
    "sampling",
    "train.groups",
    "train.group_size",
    "train.fork",
)
# An anchor or the regret changes what is graded, and workers and time limits change how fast it is.
_FREE = (
    "env.workers",
    "env.start_timeout_s",
    "env.step_timeout_s",
    "env.anchor",
    "env.options.anchor",  # of environments of other packages
    "env.regret",
    "model.shape.",  # of models with random weights
)


def claim_folder(folder: Path, config: ConfigDict, continuations: int) -> None:
    """Makes a measurement's folder, or checks for the same settings.

    Raises:
      InputError: other settings; the message names the keys that differ.
    """
    # Only keys that decide what is played: gamma or the algorithm may change between two gradings.
    settings = {
        key: value
        for key, value in flatten(config.to_dict()).items()
        if key.startswith(_DECISIVE) and not key.startswith(_FREE)
    }
    settings["continuations"] = continuations
    path = folder / SETTINGS
    # First use: the settings are written before anything is played.
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)
        return
    saved_settings = read_object(path, "remove its folder to measure anew")
    # A key that is newer than the folder counts as its default.
    saved_settings = with_defaults(saved_settings, settings)
    differences = [
        f"{key}={settings.get(key)!r} (there: {saved_settings.get(key)!r})"
        for key in sorted(settings.keys() | saved_settings.keys())
        if settings.get(key) != saved_settings.get(key)
    ]
    if differences:
        raise InputError(
            f"holds a measurement with other settings: {'; '.join(differences)}",
            key=folder,
            fix="use the same values or remove it",
        )


@dataclass(frozen=True)
class Measurement:
    """Measured advantages of some steps.

    Attributes:
      steps: The N measured steps.
      rows: [N] i, their places among all steps of the rollouts.
      advantages: Advantages of the policy as it is, with standard errors.
      halves: Two arrays [N] f64, the advantages from every second continuation.
      regret: [N] f64, as in `trajectory.Turn`; NaN where the environment does not tell.
    """

    steps: Sequence[Step]
    rows: np.ndarray
    advantages: grades.Measured
    halves: tuple[np.ndarray, np.ndarray]
    regret: np.ndarray


def make_measurement(
    trajectories: Sequence[Trajectory],
    steps: Sequence[Step],
    rows: Sequence[int],
    returns: Mapping[State, np.ndarray],
) -> Measurement:
    """Builds a measurement from returns around the chosen steps."""
    chosen_steps = [steps[row] for row in rows]
    halves = []
    # Every second continuation, and not the first half: both halves have equally many, but for one.
    for half in (0, 1):
        half_returns = {state: values[half::2] for state, values in returns.items()}
        halves.append(measured_advantages(trajectories, chosen_steps, half_returns)[0])
    advantage, error = measured_advantages(trajectories, chosen_steps, returns)
    group = np.array([step.episode.group for step in chosen_steps])
    regret = [np.nan if step.turn.regret is None else step.turn.regret for step in chosen_steps]
    return Measurement(
        steps=chosen_steps,
        rows=np.array(rows),
        advantages=grades.Measured(advantage, error, group),
        halves=(halves[0], halves[1]),
        regret=np.array(regret),
    )


def grade_estimates(
    estimates: Sequence[Estimate],
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
      estimates: Estimates of all steps, GRPO's among them; each is compared with the GRPO of its
        preset.
      measurement: Measured advantages of some of the steps.
      labels: anchor option -> `step_labels` of all steps with these anchors.
      seed: Seed of the resamples.
      group_size: Number of episodes of each task group behind the estimates; None: all.
      gradients: Function from advantages of the measured steps to gradients, as from
        `group_gradients`; None: gradients are not compared.
      progress: Called after every estimate.
    """
    measured = measurement.advantages
    rows = measurement.rows
    baselines = _grpo_by_preset(estimates)
    gradient_halves = [gradients(half) for half in measurement.halves] if gradients else []
    graded_rows = []
    for estimate in estimates:
        # Estimates see all steps of a group, as in training; only the measured steps are graded.
        values = estimate.values[rows]
        # Presets change GRPO too.
        grpo = None if "grpo" in estimate.names else baselines.get(estimate.preset)
        result = grades.grade(values, measured, seed, None if grpo is None else grpo.values[rows])
        if gradients:
            result |= grades.cosine(gradients(values), gradient_halves, seed)
        # Environments that do not tell the regret leave NaN everywhere.
        if np.isfinite(measurement.regret).any():
            result["optimal"] = _agreement_with_regret(values, measurement, seed)
        # An estimate of several anchor options has none of its own: the first option labels it.
        slices = labels.get(estimate.anchor) or next(iter(labels.values()))
        slices = {name: label[rows] for name, label in slices.items()}
        graded_slices = grades.grade_slices(values, measured, slices, seed)
        graded_rows.append(Row(estimate, group_size, values, slices, result, graded_slices))
        progress()
    return graded_rows


def _grpo_by_preset(estimates: Sequence[Estimate]) -> dict[str, Estimate]:
    baselines: dict[str, Estimate] = {}
    for estimate in estimates:
        for name, preset, _ in estimate.sources:
            if name == "grpo":
                baselines[preset] = estimate
    return baselines


def step_labels(steps: Sequence[Step]) -> dict[str, np.ndarray]:
    """Labels of steps by name: type, number, size and ambiguity of the anchor group, summary.

    The ambiguity is a label if the environment lists its actions, the summary if any step is one.
    """
    keys = [(step.episode.group, step.turn.anchor) for step in steps]
    sizes = Counter(keys)
    labels = {
        "task_type": np.array([step.episode.task.type for step in steps]),
        "step": np.array([_octave(step.step + 1) for step in steps]),
        "anchor_group_size": np.array([_octave(sizes[key]) for key in keys]),
    }
    is_text = np.array([step.turn.is_text for step in steps])
    # Summaries choose no action, so nothing is ambiguous about them.
    ambiguous = ambiguous_anchors(steps)
    if len(ambiguous) == np.sum(~is_text):  # the environment lists its actions
        labels["ambiguous_anchor"] = np.full(len(steps), "summary")
        labels["ambiguous_anchor"][~is_text] = np.where(ambiguous, "yes", "no")
    if is_text.any():
        labels["summary"] = np.where(is_text, "yes", "no")
    return labels


def _octave(number: int) -> str:
    """1, 2-3, 4-7, 8-15, ..."""
    # Powers of two, so that long tails of sizes and steps share a few slices.
    low = 1 << (number.bit_length() - 1)
    return "1" if low == 1 else f"{low}-{2 * low - 1}"


def _agreement_with_regret(values: np.ndarray, measurement: Measurement, seed: int) -> Interval:
    """Rank correlation with the negative regret of the action."""
    finite = np.isfinite(measurement.regret)
    regret = measurement.regret[finite]
    group = measurement.advantages.group[finite]
    # Regret is exact: with no error, nothing is corrected.
    optimal = grades.Measured(-regret, np.zeros(len(regret)), group)
    return grades.grade(values[finite], optimal, seed)["spearman"]
