"""Signals of a saved run: from its newest checkpoint, and those that any run can compute."""

from collections.abc import Sequence, Set
from pathlib import Path

import jax
from ml_collections import ConfigDict

from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.learner.signals.table import needed_signals
from gigpo_jax.policy import Policy
from gigpo_jax.rl.algorithms import ALGORITHMS
from gigpo_jax.trajectory import Step


def all_signals() -> list[type[Signal]]:
    """The signals of all algorithms."""
    signals = [signal for entry in ALGORITHMS.values() for signal in entry.load_signals()]
    return list(dict.fromkeys(signals))


def load_signals(
    config: ConfigDict,
    policy: Policy,
    mesh: jax.sharding.Mesh,
    checkpoints: Path,
    columns: Set[str] | None = None,
) -> list[Signal]:
    """The signals with columns of a run's newest checkpoint.

    Args:
      config: config as from `config.resolve`.
      policy: policy of the run.
      mesh: mesh as from `make_mesh`.
      checkpoints: folder of the run's checkpoints, which need not exist.
      columns: names of the columns to compute, for all algorithms; None: the run's columns.
    """
    if columns is None:
        signals = needed_signals(config)
    else:
        signals = [signal for signal in all_signals() if columns >= {*signal.columns}]
    # A signal without columns has nothing that an evaluation reads.
    needed = [signal for signal in signals if signal.columns]
    return [signal.load(config, policy, mesh, checkpoints) for signal in needed]


def gradable_columns(config: ConfigDict, policy: Policy, steps: Sequence[Step]) -> set[str]:
    """The optional columns that any run can compute."""
    columns: set[str] = set()
    for signal in all_signals():
        if signal.is_gradable(config, policy, steps):
            columns |= {*signal.columns}
    return columns
