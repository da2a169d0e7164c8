"""Mean entropy and log-probability of responses under the policy before the updates."""

from collections.abc import Sequence

import numpy as np

from gigpo_jax.learner.scored_steps import ScoredSteps
from gigpo_jax.learner.signals.base import Signal


class PolicyScores(Signal):
    """One forward pass over the samples."""

    columns = ("entropy", "logprob")
    scores_steps = True

    def compute_columns(self, scored: ScoredSteps) -> dict[str, np.ndarray]:
        """The means over the tokens of each response, [N] f32."""
        scores = scored.token_logprobs
        return {"logprob": token_means(scores.logprob), "entropy": token_means(scores.entropy)}


def token_means(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Means over the tokens of each response, one [R] f32 a row, [N] f32; 0 without tokens."""
    return np.array([row.mean() if len(row) else 0.0 for row in rows], np.float32)
