"""Several finished measurements graded as one: other policies, seeds or tasks."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.credit.estimates import restored
from gigpo_jax.credit.grades import Measured
from gigpo_jax.credit.measurement import Measurement, graded
from gigpo_jax.credit.report import Row
from gigpo_jax.errors import InputError

GRADES = "grades.json"


def pool(folders: Sequence[Path], seed: int) -> tuple[list[Row], Measured]:
    """Grades the estimates that all measurements have, on the steps of all; the slice `measurement` is the folder.

    Args:
      folders: each with a `grades.json`.
      seed: of the resamples.

    Raises:
      InputError: a file is missing or damaged, or no estimate is in all of them.
    """
    read = [_read(folder) for folder in folders]
    steps = [step for found in read for step in found["steps"]]
    places = np.repeat(np.arange(len(read)), [len(found["steps"]) for found in read])
    group = np.unique([(place, step["group"]) for place, step in zip(places, steps)], axis=0, return_inverse=True)[1]
    own = Measured(
        np.array([step["advantage"] for step in steps]), np.array([step["error"] for step in steps]), group.ravel()
    )
    regret = np.array([step["regret"] for step in steps], np.float64)  # null is NaN
    measurement = Measurement(steps=(), rows=np.arange(len(steps)), own=own, halves=(own.advantage,) * 2, regret=regret)
    rows = []
    for size in dict.fromkeys(entry["group_size"] for entry in read[0]["estimates"]):
        parts = [[entry for entry in found["estimates"] if entry["group_size"] == size] for found in read]
        found = restored([_by_source(part) for part in parts])
        if not any("grpo" in estimate.names for estimate in found):
            continue
        labels = [_labels(file["labels"], part) for file, part in zip(read, parts)]
        joined = {
            anchor: {
                **{name: np.concatenate([of[anchor][name] for of in labels]) for name in labels[0][anchor]},
                "measurement": np.array([str(folder) for folder in folders])[places],
            }
            for anchor in labels[0]
        }
        rows += graded(found, measurement, joined, seed, group_size=size)
    if not rows:
        raise InputError(f"--pool: no estimate is in all of {', '.join(map(str, folders))}")
    return rows, own


def _read(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / GRADES).read_text(encoding="utf-8"))
        found["estimates"][0]["sources"]
    except (OSError, ValueError, LookupError) as err:
        fix = "the command that made it writes it anew"
        raise InputError(f"{folder}: holds no {GRADES} with the values of estimates ({err!r}); {fix}") from err
    return found


def _by_source(estimates: Sequence[Any]) -> dict[Any, np.ndarray]:
    pairs = itertools.chain.from_iterable(((source, entry) for source in entry["sources"]) for entry in estimates)
    return {tuple(source): np.array(entry["values"]) for source, entry in pairs}


def _labels(labels: Sequence[Any], estimates: Sequence[Any]) -> dict[str, Any]:
    """Anchor option -> slice -> labels of the steps; an estimate that several options give has those of the first."""
    pairs = [([*dict.fromkeys(s[2] for s in entry["sources"])], labels[entry["labels"]]) for entry in estimates]
    return {anchor: of for anchors, of in sorted(pairs, key=lambda pair: -len(pair[0])) for anchor in anchors}
