"""The factor of the loss's clips that an algorithm computes for each step, as A2TGPO does."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from gigpo_jax.learner.scored_steps import CreditedSteps
from gigpo_jax.learner.signals.base import Signal


class ClipScales(Signal):
    """Copies `StepCredit.clip_scale` to the tokens of each step."""

    batch_fields = MappingProxyType({"clip_scale": np.float32})

    def compute_fields(self, credited: CreditedSteps) -> dict[str, Sequence[Any]]:
        """One factor a step; 1 where the algorithm computes none."""
        scales = credited.credit.clip_scale
        if scales is None:
            scales = np.ones(len(credited.scored.steps), np.float32)
        return {"clip_scale": scales.tolist()}
