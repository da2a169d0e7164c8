"""A critic of plans: three values a response, for HiPER (arXiv 2602.16165).

The value of the turn's action (low) is read behind the subgoal. The values of the subgoal (high)
and of the decision to switch are read before the first token of the response.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.scored_steps import CreditedSteps
from gigpo_jax.learner.signals.action_tags import action_tags
from gigpo_jax.learner.signals.critic import Critic, ReadValues
from gigpo_jax.methods.hiper.advantages import PLAN_VALUES
from gigpo_jax.methods.hiper.response_parts import PartReader, part_reader
from gigpo_jax.policy import Policy
from gigpo_jax.rl.column import Column
from gigpo_jax.rl.value_targets import ValueTargets

_THREE = np.dtype((np.float32, len(PLAN_VALUES)))  # three numbers a token


class PlanCritic(Critic):
    """Values of plans, learnt from every minibatch."""

    columns = MappingProxyType(
        {
            "plan_value": Column(
                "float32",
                3,
                "critic's estimates of `PLAN_VALUES` for the response",
            ),
        }
    )
    batch_fields = MappingProxyType({"values": ValueTargets(_THREE, _THREE, _THREE)})

    def __init__(self, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> None:
        """Starts as `Critic` does."""
        super().__init__(config, policy, mesh)
        self._read_parts = part_reader(policy.tokenizer, action_tags(config))

    @classmethod
    def value_reader(cls, config: ConfigDict, policy: Policy) -> ReadValues:
        """The function from samples and their values to `plan_value`."""
        read_parts = part_reader(policy.tokenizer, action_tags(config))

        def read_values(
            samples: Sequence[Sample], values: Sequence[np.ndarray]
        ) -> dict[str, np.ndarray]:
            rows = np.zeros((len(samples), len(PLAN_VALUES)), np.float32)
            for row, sample, token_values in zip(rows, samples, values, strict=True):
                if len(token_values):
                    places = _read_places(sample, read_parts)
                    row[:] = token_values[places, np.arange(len(PLAN_VALUES))]
            return {"plan_value": rows}

        return read_values

    def compute_fields(self, credited: CreditedSteps) -> dict[str, Sequence[Any]]:
        """`ValueTargets` of each step, [R, 3] each, with the values from before the updates."""
        targets = credited.credit.target
        assert targets is not None  # `hiper` computes them
        columns = credited.columns
        rows = zip(
            credited.scored.samples,
            columns["plan_value"],
            targets,
            columns["plan_start"],
            strict=True,
        )
        return {
            "values": [
                plan_targets(value, target, start, _read_places(sample, self._read_parts), sample)
                for sample, value, target, start in rows
            ]
        }


def plan_targets(
    value: np.ndarray, target: np.ndarray, start: bool, places: Sequence[int], sample: Sample
) -> ValueTargets:
    """Targets of a critic of plans for one step.

    Args:
      value: values of `PLAN_VALUES`, [3] f32.
      target: their targets, [3] f32.
      start: whether the turn begins a segment; the value of a subgoal learns there alone.
      places: token before which each value is read.
      sample: sample of the step.
    """
    weight = np.zeros((len(sample.response_tokens), len(PLAN_VALUES)), np.float32)
    if len(weight):
        learns = np.array([True, start, True])
        weight[places, np.arange(len(PLAN_VALUES))] = learns
    return ValueTargets(value, target, weight)


def _read_places(sample: Sample, read_parts: PartReader) -> list[int]:
    """For each of `PLAN_VALUES`, the index of the response token before which it is read."""
    return [read_parts(sample.response_tokens).after_subgoal, 0, 0]
