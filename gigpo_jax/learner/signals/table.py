"""Finds the signals of a run, and joins what they compute."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.core.references import load_reference
from gigpo_jax.learner.objective import config_algorithm
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.models.decoder import DecoderConfig
from gigpo_jax.policy import Policy

if TYPE_CHECKING:
    # A run whose algorithm names no signal loads none.
    from gigpo_jax.learner.signals.base import Signal

# No algorithm names it: a switch of the model needs it.
REPLAYED_EXPERTS = "gigpo_jax.learner.signals.replayed_experts:ReplayedExperts"


def needed_signals(config: ConfigDict) -> "list[type[Signal]]":
    """The signals that a run needs: its algorithm names them, or a switch of the model does."""
    signals: list[type[Signal]] = config_algorithm(config).load_signals()
    if config.model.replay_routes:
        signals.append(load_reference(REPLAYED_EXPERTS, key="config.model.replay_routes"))
    return [signal for signal in signals if signal.is_needed(config)]


def start_signals(
    config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh
) -> "tuple[Signal, ...]":
    """The signals of a training run at its start."""
    return tuple(signal.start(config, policy, mesh) for signal in needed_signals(config))


def signal_bytes(config: ConfigDict, shape: DecoderConfig) -> dict[str, int]:
    """The signals' bytes in the memory estimate, see `policy.SignalBytes`."""
    sizes: dict[str, int] = {}
    for signal in needed_signals(config):
        sizes |= signal.parameter_bytes(config, shape)
    return sizes


def compute_columns(signals: "Sequence[Signal]", scored: ScoredSteps) -> dict[str, np.ndarray]:
    """Computes the columns of all signals by name; all hosts call this together."""
    columns: dict[str, np.ndarray] = {}
    for signal in signals:
        columns |= signal.checked_columns(scored)
    return columns


def batch_fields(signals: "Sequence[Signal | type[Signal]]") -> Mapping[str, Any]:
    """Dtypes of the optional fields of minibatches by name."""
    fields: dict[str, Any] = {}
    for signal in signals:
        fields |= signal.batch_fields
    return fields
