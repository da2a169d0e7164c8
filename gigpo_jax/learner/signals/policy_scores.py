"""Mean entropy and log-probability of responses under the policy before the updates."""

from typing import Self

import jax
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.learner.signals.base import ScoredSteps, Signal
from gigpo_jax.policy import Policy


class PolicyScores(Signal):
    """One forward pass over the samples; EMPG needs it."""

    columns = ("entropy", "logprob")
    scores_steps = True

    @classmethod
    def start(cls, config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh) -> Self:
        """Has no state."""
        del config, policy, mesh
        return cls()

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """The means over the tokens of each response, [N] f32."""
        return scored.token_logprobs.means()
