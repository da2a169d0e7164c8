"""Mean entropy and log-probability of responses under the policy before the updates."""

import numpy as np

from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.base import Signal


class PolicyScores(Signal):
    """One forward pass over the samples; EMPG needs it."""

    columns = ("entropy", "logprob")
    scores_steps = True

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """The means over the tokens of each response, [N] f32."""
        return scored.token_logprobs.means()
