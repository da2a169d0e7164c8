"""Columns of `gigpo credit` that come from what a run has trained."""

from types import SimpleNamespace

import numpy as np
import pytest

from gigpo_jax.learner.signals.critic import SavedCritic
from gigpo_jax.learner.signals.policy_scores import PolicyScores
from gigpo_jax.methods.oprl.implicit_rewards import SavedRewards
from gigpo_jax.methods.text_critic.critic import TextCritic
from gigpo_jax.tools.credit.run import _own_columns

pytestmark = pytest.mark.slow


def test_a_runs_critic_and_its_copy_that_learns_rewards_are_read() -> None:
    for kind in (SavedCritic, SavedRewards, TextCritic, PolicyScores):
        signal = SimpleNamespace(
            columns=kind.columns,
            reads_anchors=kind.reads_anchors,
            compute_columns=lambda steps, kind=kind: {next(iter(kind.columns)): np.array(steps)},
        )
        for own in ([2.0], None):
            found = _own_columns([signal], {*PolicyScores.columns}, [1.0], own)
            if kind is PolicyScores or (kind is TextCritic and own is None):
                assert found == {}
            else:
                want = {next(iter(kind.columns)): [2.0] if kind is TextCritic else [1.0]}
                assert {name: column.tolist() for name, column in found.items()} == want
