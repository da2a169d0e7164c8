"""Several finished measurements graded as one: other policies, seeds or tasks."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.tools.credit.estimates import Source, join_estimates
from gigpo_jax.tools.credit.grades import Measured
from gigpo_jax.tools.credit.measurement import Measurement, grade_estimates
from gigpo_jax.tools.credit.report import Row

GRADES = "grades.json"


def pool_measurements(folders: Sequence[Path], seed: int) -> tuple[list[Row], Measured]:
    """Grades the estimates that all measurements share, on all steps.

    The slice `measurement` grades the steps of each folder by themselves.

    Args:
      folders: Folders of measurements, each with a `grades.json`.
      seed: Seed of the resamples.

    Raises:
      InputError: a file is missing or damaged, or no estimate is in all of them.
    """
    files = [_read_grades(folder) for folder in folders]
    measurement, file_index = _join_steps(files)
    rows = []
    # Estimates from different numbers of episodes are different estimates.
    for size in dict.fromkeys(entry["group_size"] for entry in files[0]["estimates"]):
        entries = [
            [entry for entry in file["estimates"] if entry["group_size"] == size] for file in files
        ]
        estimates = join_estimates([_values_by_source(file_entries) for file_entries in entries])
        # Without GRPO the column of differences has no baseline.
        if not any("grpo" in estimate.names for estimate in estimates):
            continue
        labels = [
            _labels_by_anchor(file["labels"], file_entries)
            for file, file_entries in zip(files, entries)
        ]
        joined_labels = {}
        # All files share the estimates, and so the anchor options.
        for anchor, slices in labels[0].items():
            joined_labels[anchor] = {
                name: np.concatenate([file_labels[anchor][name] for file_labels in labels])
                for name in slices
            }
            folder_names = np.array([str(folder) for folder in folders])
            joined_labels[anchor]["measurement"] = folder_names[file_index]
        rows += grade_estimates(estimates, measurement, joined_labels, seed, group_size=size)
    if not rows:
        raise InputError(f"no estimate is in all of {', '.join(map(str, folders))}", key="--pool")
    return rows, measurement.advantages


def _join_steps(files: Sequence[Mapping[str, Any]]) -> tuple[Measurement, np.ndarray]:
    """The measured steps of all files, with file indices [N]."""
    steps = [step for file in files for step in file["steps"]]
    file_index = np.repeat(np.arange(len(files)), [len(file["steps"]) for file in files])
    # Task groups of two measurements are different groups, even with equal numbers.
    keys = [(index, step["group"]) for index, step in zip(file_index, steps)]
    _, group = np.unique(keys, axis=0, return_inverse=True)
    advantages = Measured(
        np.array([step["advantage"] for step in steps]),
        np.array([step["error"] for step in steps]),
        group.ravel(),
    )
    measurement = Measurement(
        steps=(),
        rows=np.arange(len(steps)),
        advantages=advantages,
        # The files do not keep the halves. Only gradients need them, and a pool compares none.
        halves=(advantages.advantage, advantages.advantage),
        regret=np.array([step["regret"] for step in steps], np.float64),  # null is NaN
    )
    return measurement, file_index


def _read_grades(folder: Path) -> dict[str, Any]:
    try:
        grades: dict[str, Any] = json.loads((folder / GRADES).read_text(encoding="utf-8"))
        # Files of older versions have no values of estimates, from which a pool starts.
        grades["estimates"][0]["sources"]
    except (OSError, ValueError, LookupError) as err:
        raise InputError(
            f"holds no {GRADES} with the values of estimates ({err!r})",
            key=folder,
            fix="run the command that made it again",
        ) from err
    return grades


def _values_by_source(entries: Sequence[Mapping[str, Any]]) -> dict[Source, np.ndarray]:
    values: dict[Source, np.ndarray] = {}
    for entry in entries:
        for name, preset, anchor in entry["sources"]:
            values[name, preset, anchor] = np.array(entry["values"])
    return values


def _labels_by_anchor(
    labels: Sequence[Any], entries: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Anchor option -> slice -> labels of the steps.

    An estimate that several anchor options give has the labels of the first option. Estimates of
    fewer options are therefore written later, over them.
    """
    anchors = [list(dict.fromkeys(source[2] for source in entry["sources"])) for entry in entries]
    # Most options first, so that the most specific entry is written last.
    order = sorted(range(len(entries)), key=lambda index: -len(anchors[index]))
    table = {}
    for index in order:
        for anchor in anchors[index]:
            table[anchor] = labels[entries[index]["labels"]]
    return table
