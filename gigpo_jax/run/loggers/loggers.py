"""Loggers, which show metrics during a run; the record is metrics.jsonl.

A logger of your own is `module:NAME` (docs/loggers.md).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.core.errors import escape_controls
from gigpo_jax.core.references import ReferenceTable, find_entry


@dataclass(frozen=True)
class Start:
    """State of a run when a logger is opened.

    Attributes:
      name: Name of the run; the same when it continues.
      folder: Folder of the run; a logger keeps its files in a folder of its own there.
      config: Values by dotted key.
      step: Step of the last record that the run keeps; later ones are written again. -1: the run is
        new.
      done: Last iteration whose histograms and texts the run keeps.
      records: (step, metrics) of metrics.jsonl up to `step`, for a logger that may have lost some.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    step: int
    done: int
    records: Sequence[tuple[int, Mapping[str, float]]]


class Logger(Protocol):
    """A display of metrics; an exception of any method ends it with a warning, and not the run."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Takes metrics once for each step; the steps increase."""

    def histogram(self, step: int, name: str, values: np.ndarray) -> None:
        """Takes a distribution, before the metrics of its step."""

    def text(self, step: int, name: str, markdown: str) -> None:
        """Takes a text, before the metrics of its step."""

    def pictures(self, step: int, name: str, files: Sequence[bytes]) -> None:
        """Takes PNG files before the metrics of their step; it is not called without pictures."""

    def close(self) -> None:
        """Ends the run's log."""


LOGGERS: ReferenceTable[Any] = ReferenceTable(
    {
        "tensorboard": "gigpo_jax.run.loggers.tensorboard:TensorBoard",
        "wandb": "gigpo_jax.run.loggers.weights_and_biases:WeightsAndBiases",
    }
)


def find_loggers(config: ConfigDict) -> dict[str, Callable[[Start], Logger]]:
    """Finds the constructors of the loggers of `log.to`, by name.

    Raises:
      InputError: one is unknown or cannot be loaded.
    """
    names = config.log.to
    return {name: find_entry(name, LOGGERS, object, key="config.log.to") for name in names}


def run_name(config: ConfigDict) -> str:
    """Name of a run, from values it cannot change."""
    model = Path(config.model.path).name or "fresh"
    name = f"{config.env.name}-{config.rl.algorithm}-{model}-seed{config.seed}"
    # It becomes a folder's name; "module:NAME" has a colon.
    return re.sub(r"[^\w.-]+", "_", name)


def as_code_block(text: str) -> str:
    """Returns Markdown that shows a text as it is, whatever an environment or a model wrote."""
    # Indented, not fenced: the text may contain a fence.
    return "\n".join("    " + escape_controls(line) for line in text.splitlines())
