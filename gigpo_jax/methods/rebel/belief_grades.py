"""Grades and keys of the beliefs that responses state, for ReBel (arXiv 2605.20061)."""

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require
from gigpo_jax.env_bridge.types import anchor_hash
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.methods.rebel.beliefs import BELIEF
from gigpo_jax.methods.rebel.episode_part import GRADE
from gigpo_jax.policy import Policy
from gigpo_jax.rl.column import Column
from gigpo_jax.trajectory import Step


class BeliefGrades(Signal):
    """Columns of the grades that the rollout has made."""

    columns = MappingProxyType(
        {
            "belief": Column("uint32", 2, "hash of the key of the policy's newest belief"),
            "belief_grade": Column(
                "float32",
                4,
                "grades of the response's belief: state, phase, prediction and format "
                "(`beliefs.BeliefGrade`)",
            ),
            "task_type": Column("uint32", 2, "hash of the task type"),
        }
    )

    @classmethod
    def check(cls, config: ConfigDict, run: ConfigDict) -> None:
        """Checks that responses state beliefs."""
        del run
        reason = f"{config.rl.algorithm} compares stated beliefs"
        require(config.env.plan == BELIEF, config, "env.plan", reason, f"use {BELIEF}")

    @classmethod
    def is_gradable(cls, config: ConfigDict, policy: Policy, steps: Sequence[Step]) -> bool:
        """Whether responses state beliefs."""
        del policy, steps
        return config.env.plan == BELIEF

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """Keys and task types, [N, 2] u32 hashes, and grades, [N, 4] f32."""
        # The check of the config: with this plan every turn has a grade.
        grades = [step.turn.extra[GRADE] for step in scored.steps]
        keys = [anchor_hash(grade.key) for grade in grades]
        parts = [grade.parts for grade in grades]
        # Types of two environments of a mix are two types, whatever their names.
        tasks = [step.episode.task for step in scored.steps]
        types = [anchor_hash(f"{task.environment}/{task.type}") for task in tasks]
        return {
            "task_type": np.array(types, np.uint32).reshape(-1, 2),
            "belief": np.array(keys, np.uint32).reshape(-1, 2),
            "belief_grade": np.array(parts, np.float32).reshape(-1, 4),
        }
