"""Uncertainty of the policy about a response."""

import numpy as np


def mean_uncertainty(logprobs: np.ndarray, entropies: np.ndarray | None) -> float:
    """Returns the mean entropy over response tokens, nats; 0 without tokens.

    Without entropies it is estimated by the mean of -log p, whose expectation is the entropy.
    """
    values = -logprobs if entropies is None else entropies
    return float(np.sum(values, dtype=np.float64)) / max(len(values), 1)
