"""All signals, and what the learner and other rooms ask of those that a run needs."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.learner.objective import config_algorithm
from gigpo_jax.learner.signals.action_spans import ActionSpans
from gigpo_jax.learner.signals.base import ScoredSteps, Signal
from gigpo_jax.learner.signals.belief_grades import BeliefGrades
from gigpo_jax.learner.signals.clip_scales import ClipScales
from gigpo_jax.learner.signals.critic import Critic
from gigpo_jax.learner.signals.episode_ends import EpisodeEnds
from gigpo_jax.learner.signals.frozen_teacher import FrozenTeacher
from gigpo_jax.learner.signals.implicit_rewards import ImplicitRewards
from gigpo_jax.learner.signals.known_answers import KnownAnswers
from gigpo_jax.learner.signals.plan_critic import PlanCritic
from gigpo_jax.learner.signals.plan_parts import PlanParts
from gigpo_jax.learner.signals.policy_scores import PolicyScores
from gigpo_jax.learner.signals.replayed_experts import ReplayedExperts
from gigpo_jax.learner.signals.served_teacher import ServedTeacher
from gigpo_jax.learner.signals.tags import Tags
from gigpo_jax.learner.signals.task_deviations import TaskDeviations
from gigpo_jax.learner.signals.teacher import Teacher
from gigpo_jax.learner.signals.text_critic import TextCritic
from gigpo_jax.models.decoder import DecoderConfig
from gigpo_jax.policy import Policy
from gigpo_jax.trajectory import Step

SIGNALS: tuple[type[Signal], ...] = (
    PolicyScores,
    Tags,
    TextCritic,
    KnownAnswers,
    EpisodeEnds,
    TaskDeviations,
    ImplicitRewards,
    Critic,
    PlanParts,
    PlanCritic,
    BeliefGrades,
    Teacher,
    FrozenTeacher,
    ServedTeacher,
    ActionSpans,
    ClipScales,
    ReplayedExperts,
)


def needed_signals(config: ConfigDict) -> list[type[Signal]]:
    """The signals that the algorithm of a config needs."""
    needs = frozenset(config_algorithm(config).needs)
    return [signal for signal in SIGNALS if signal.is_needed(config, needs)]


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
    needs: Set[str] | None = None,
) -> list[Signal]:
    """The signals with columns of a run's newest checkpoint.

    Args:
      config: config as from `config.resolve`.
      policy: policy of the run.
      mesh: mesh as from `make_mesh`.
      checkpoints: folder of the run's checkpoints, which need not exist.
      needs: names to compute columns for; None: those that the algorithm needs.
    """
    names = frozenset(config_algorithm(config).needs if needs is None else needs)
    # A signal without columns has nothing that an evaluation reads.
    needed = [signal for signal in SIGNALS if signal.columns and signal.is_needed(config, names)]
    return [signal.load(config, policy, mesh, checkpoints) for signal in needed]


def signal_bytes(config: ConfigDict, shape: DecoderConfig) -> dict[str, int]:
    """The signals' bytes in the memory plan, see `memory.SignalBytes`."""
    sizes: dict[str, int] = {}
    for signal in needed_signals(config):
        sizes |= signal.parameter_bytes(config, shape)
    return sizes


def gradable_columns(config: ConfigDict, policy: Policy, steps: Sequence[Step]) -> set[str]:
    """The optional columns that any run can compute."""
    columns: set[str] = set()
    for signal in SIGNALS:
        if signal.is_gradable(config, policy, steps):
            columns |= {*signal.columns}
    return columns


def compute_columns(signals: Sequence[Signal], scored: ScoredSteps) -> dict[str, np.ndarray]:
    """The columns of all signals by name.

    All hosts call this together.
    """
    columns: dict[str, np.ndarray] = {}
    for signal in signals:
        columns |= signal.compute_columns(scored)
    return columns


def batch_fields(signals: Sequence[Signal | type[Signal]]) -> Mapping[str, Any]:
    """Dtypes of the optional fields of minibatches by name."""
    fields: dict[str, Any] = {}
    for signal in signals:
        fields |= signal.batch_fields
    return fields
