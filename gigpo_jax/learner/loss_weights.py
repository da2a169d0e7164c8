"""Weights of steps and of tokens in the loss, for configs that do not weigh all tokens alike."""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.mix import writes_summaries
from gigpo_jax.learner.scored_steps import CreditedSteps
from gigpo_jax.rl.algorithms import Algorithm
from gigpo_jax.trajectory import Step


def sample_weights(
    config: ConfigDict,
    algorithm: Algorithm,
    credited: CreditedSteps,
    fields: Mapping[str, Sequence[Any]],
) -> Sequence[float | np.ndarray]:
    """Weighs the tokens of each step; `fields` are the optional fields of minibatches."""
    steps = credited.scored.steps
    weights = [1.0] * len(steps)
    if config.rl.loss_mean == "episodes":
        # The bound keeps weights at 1 or more: the loss divides by their sum, or by 1
        # if that is less.
        longest = config.env.max_steps * config.sampling.max_response_tokens
        # At most one before each step, and none is longer than a response may be.
        longest *= 1 + writes_summaries(config)
        weights = episode_weights(steps, credited.credit.learned_rows, longest)
    if algorithm.token_weights is None:
        return weights
    token_weights = functools.partial(algorithm.token_weights, **config.rl.settings)
    return with_token_weights(weights, fields["action_mask"], token_weights)


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
