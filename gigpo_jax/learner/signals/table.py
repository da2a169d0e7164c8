"""The signals of a run, and what the learner and other rooms ask of them."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.core.references import load_reference
from gigpo_jax.learner.objective import config_algorithm
from gigpo_jax.learner.signals.base import ScoredSteps, Signal
from gigpo_jax.models.decoder import DecoderConfig
from gigpo_jax.policy import Policy
from gigpo_jax.rl.algorithms import ALGORITHMS, Algorithm
from gigpo_jax.rl.types import Column
from gigpo_jax.trajectory import Step

# Of no algorithm: a switch of the model needs it.
REPLAYED_EXPERTS = "gigpo_jax.learner.signals.replayed_experts:ReplayedExperts"


def algorithm_signals(algorithm: Algorithm) -> list[type[Signal]]:
    """The signals that an algorithm names."""
    return [load_reference(name, key="config.rl.algorithm") for name in algorithm.signals]


def needed_signals(config: ConfigDict) -> list[type[Signal]]:
    """The signals that a run needs."""
    signals = algorithm_signals(config_algorithm(config))
    if config.model.replay_routes:
        signals.append(load_reference(REPLAYED_EXPERTS, key="config.model.replay_routes"))
    return [signal for signal in signals if signal.is_needed(config)]


def all_signals() -> list[type[Signal]]:
    """The signals of all algorithms."""
    signals = [signal for entry in ALGORITHMS.values() for signal in algorithm_signals(entry)]
    return list(dict.fromkeys(signals))


def start_signals(
    config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh
) -> tuple[Signal, ...]:
    """The signals of a training run at its start."""
    return tuple(signal.start(config, policy, mesh) for signal in needed_signals(config))


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


def signal_bytes(config: ConfigDict, shape: DecoderConfig) -> dict[str, int]:
    """The signals' bytes in the memory estimate, see `memory.SignalBytes`."""
    sizes: dict[str, int] = {}
    for signal in needed_signals(config):
        sizes |= signal.parameter_bytes(config, shape)
    return sizes


def gradable_columns(config: ConfigDict, policy: Policy, steps: Sequence[Step]) -> set[str]:
    """The optional columns that any run can compute."""
    columns: set[str] = set()
    for signal in all_signals():
        if signal.is_gradable(config, policy, steps):
            columns |= {*signal.columns}
    return columns


def compute_columns(signals: Sequence[Signal], scored: ScoredSteps) -> dict[str, np.ndarray]:
    """Computes the columns of all signals by name; all hosts call this together."""
    columns: dict[str, np.ndarray] = {}
    for signal in signals:
        computed = signal.compute_columns(scored)
        if isinstance(signal.columns, Mapping):
            _check_declared(computed, signal.columns)
        columns |= computed
    return columns


def _check_declared(computed: Mapping[str, np.ndarray], declared: Mapping[str, Column]) -> None:
    """Checks the columns of a method: a wrong type would compile another program on each host."""
    for name, column in declared.items():
        if name not in computed:
            continue
        values = computed[name]
        width = None if values.ndim == 1 else values.shape[1]
        fits = (
            width is None
            if column.width is None
            else width in (column.width, column.width or width)
        )
        if values.dtype != column.dtype or not fits:
            raise TypeError(f"{name} must be {column}, got {values.dtype} {values.shape}")


def batch_fields(signals: Sequence[Signal | type[Signal]]) -> Mapping[str, Any]:
    """Dtypes of the optional fields of minibatches by name."""
    fields: dict[str, Any] = {}
    for signal in signals:
        fields |= signal.batch_fields
    return fields
