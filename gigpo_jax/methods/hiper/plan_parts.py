"""Where responses switch their subgoal, and which tokens state it, for HiPER (arXiv 2602.16165)."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Self

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require
from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.action_tags import action_tags
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.methods.hiper.response_parts import PartReader, part_reader
from gigpo_jax.methods.hiper.subgoals import SUBGOAL, SubgoalResponse, read_subgoal
from gigpo_jax.policy import Policy
from gigpo_jax.rl.column import Column
from gigpo_jax.trajectory import Step


class PlanParts(Signal):
    """Columns of subgoals."""

    columns = MappingProxyType(
        {
            "plan_start": Column(
                "bool",
                None,
                "steps that begin a part of the trajectory with one plan: its first step, "
                "and those whose response switches the plan",
            ),
            "plan_changed": Column(
                "bool",
                None,
                "other steps whose response states another plan than the one before",
            ),
            "token_part": Column(
                "int32",
                0,
                "part of a response that the token is in, numbers of `RESPONSE_PARTS`, or -1",
            ),
        }
    )

    def __init__(self, read_parts: PartReader, length: int) -> None:
        """Takes a reader, as from `part_reader`, and the length limit of responses in tokens."""
        self._read_parts = read_parts
        self._length = length

    @classmethod
    def check(cls, config: ConfigDict, run: ConfigDict) -> None:
        """Checks that responses state subgoals."""
        del run
        reason = f"{config.rl.algorithm} learns from subgoals"
        require(config.env.plan == SUBGOAL, config, "env.plan", reason, f"use {SUBGOAL}")

    @classmethod
    def is_gradable(cls, config: ConfigDict, policy: Policy, steps: Sequence[Step]) -> bool:
        """Whether responses state subgoals."""
        del policy, steps
        return config.env.plan == SUBGOAL

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """Makes the signal, which has no state."""
        del mesh
        return cls(
            part_reader(policy.tokenizer, action_tags(config)), config.sampling.max_response_tokens
        )

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """`plan_columns`, and the parts of the tokens."""
        parts = np.full((len(scored.samples), self._length), -1, np.int32)
        for row, sample in zip(parts, scored.samples, strict=True):
            row[: len(sample.response_tokens)] = self._read_parts(sample.response_tokens).parts
        return plan_columns(scored.steps) | {"token_part": parts}


def plan_columns(steps: Sequence[Step]) -> dict[str, np.ndarray]:
    """The columns `plan_start` and `plan_changed` of whole episodes in any order, [N] bool each."""
    starts = np.zeros(len(steps), bool)
    changes = np.zeros(len(steps), bool)
    previous: dict[int, SubgoalResponse] = {}
    # A change is one to the turn before.
    for row in sorted(range(len(steps)), key=lambda row: steps[row].turn_index):
        step = steps[row]
        response = read_subgoal(step.turn.response)
        earlier = previous.get(step.trajectory)
        starts[row] = earlier is None or response.switches
        if earlier is not None and not response.switches:
            changes[row] = response.subgoal != earlier.subgoal
        previous[step.trajectory] = response
    return {"plan_start": starts, "plan_changed": changes}
