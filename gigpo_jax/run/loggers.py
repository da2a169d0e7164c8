"""Loggers show metrics during a run; the record is metrics.jsonl. One of your own is module:NAME (docs/guide.md)."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax import references
from gigpo_jax.config.tree import flat
from gigpo_jax.errors import InputError, printable


@dataclass(frozen=True)
class Start:
    """What a logger gets when a run starts or continues.

    Attributes:
      name: of the run; the same when it continues.
      folder: of the run; a logger keeps its files in a folder of its own there.
      config: values by dotted key.
      step: of the last record that the run keeps; later ones are written again. -1: the run is new.
      done: the last iteration whose histograms and texts the run keeps.
      records: (step, metrics) of metrics.jsonl up to `step`, for a logger that may have lost some.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    step: int
    done: int
    records: Sequence[tuple[int, Mapping[str, float]]]


class Logger(Protocol):
    """Shows metrics. An exception of any method ends the logger with a warning, not the run."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the metrics of a step, once each; the steps increase."""

    def histogram(self, step: int, name: str, values: np.ndarray) -> None:
        """Takes a distribution, before the metrics of its step."""

    def text(self, step: int, name: str, markdown: str) -> None:
        """Takes a text, before the metrics of its step."""

    def pictures(self, step: int, name: str, files: Sequence[bytes]) -> None:
        """Takes PNG files, before the metrics of their step; runs without pictures do not call it."""

    def close(self) -> None:
        """Ends the run's log."""


LOGGERS = {
    "tensorboard": "gigpo_jax.run.tensorboard:TensorBoard",
    "wandb": "gigpo_jax.run.weights_and_biases:WeightsAndBiases",
}


def find_loggers(config: ConfigDict) -> dict[str, Callable[[Start], Logger]]:
    """What makes the loggers of `log.to`, by name.

    Raises:
      InputError: one is unknown or cannot be loaded.
    """
    for name in config.log.to:
        if name not in LOGGERS and ":" not in name:
            raise InputError(f"config.log.to={name!r}: no such logger; choose of {', '.join(LOGGERS)}, or module:NAME")
    return {name: references.load(LOGGERS.get(name, name), key="config.log.to") for name in config.log.to}


def run_name(config: ConfigDict) -> str:
    """Says what a run is; of values that a run cannot change."""
    model = Path(config.model.path).name or "fresh"
    return re.sub(r"[^\w.-]+", "_", f"{config.env.name}-{config.rl.algorithm}-{model}-seed{config.seed}")


def start_of(
    config: ConfigDict, folder: Path, step: int, done: int, records: Sequence[tuple[int, Mapping[str, float]]]
) -> Start:
    """What the loggers of a run get when it starts or continues."""
    return Start(run_name(config), folder, flat(config.to_dict()), step, done, records)


def verbatim(text: str) -> str:
    """Markdown that shows a text as it is, whatever an environment or a model wrote."""
    return "\n".join("    " + printable(line) for line in text.splitlines())
