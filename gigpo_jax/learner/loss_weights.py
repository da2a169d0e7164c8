"""Weights of steps and of tokens in the loss, for configs that do not weigh all tokens alike."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from gigpo_jax.trajectory import Step


def episode_weights(steps: Sequence[Step], rows: Sequence[int], longest: int) -> list[float]:
    """Weighs tokens so that every episode counts the same, whatever its number of response tokens.

    Args:
      steps: steps of whole episodes of this host.
      rows: rows of the steps that are in the loss.
      longest: upper bound of the response tokens of an episode; it makes all weights at least 1.

    Returns:
      One weight a step.
    """
    tokens: Counter[int] = Counter()
    for row in rows:
        tokens[steps[row].trajectory] += len(steps[row].turn.response_tokens)
    # An episode may have no response token; its samples are then left out of all rows.
    return [longest / max(tokens[step.trajectory], 1) for step in steps]


def with_token_weights(
    weights: Sequence[float], masks: Sequence[np.ndarray], token_weights: Callable[..., np.ndarray]
) -> list[np.ndarray]:
    """Weights of steps times the weights of their tokens.

    Args:
      weights: one weight a step.
      masks: action mask of each response, [R] bool.
      token_weights: function from an action mask to [R] f32.
    """
    return [weight * token_weights(mask) for weight, mask in zip(weights, masks, strict=True)]
