"""The tokens of each response that are its action, such as `<action>go north</action>`."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Self

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.requirements import require
from gigpo_jax.envs import registry
from gigpo_jax.learner.scored_steps import CreditedSteps
from gigpo_jax.learner.signals.action_tags import action_tags
from gigpo_jax.learner.signals.base import Signal
from gigpo_jax.learner.spans import ActionMask, action_masks
from gigpo_jax.policy import Policy


class ActionSpans(Signal):
    """Masks of action tokens.

    Attributes:
      mask: function from token ids [R] to [R] bool, True in the action.
    """

    batch_fields = MappingProxyType({"action_mask": np.bool_})

    def __init__(self, mask: ActionMask) -> None:
        """Takes a function as from `action_masks`."""
        self.mask = mask

    @classmethod
    def check(cls, config: ConfigDict, run: ConfigDict) -> None:
        """Checks that responses have tags around the action."""
        del run
        reason = f"its responses have no tags around the action, which {config.rl.algorithm} needs"
        has_tags = bool(registry.spec(config.env.name).action_tags)
        require(has_tags, config, "env.name", reason, "choose another")

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """Looks for the action tags of the config's environments."""
        del mesh
        return cls(action_masks(policy.tokenizer, action_tags(config)))

    def compute_fields(self, credited: CreditedSteps) -> dict[str, Sequence[Any]]:
        """One mask a step, [R] bool."""
        samples = credited.scored.samples
        return {"action_mask": [self.mask(sample.response_tokens) for sample in samples]}
