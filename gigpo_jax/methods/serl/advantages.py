"""SERL (arXiv 2605.19447): hindsight of a copy of the policy weighs the tokens of an action.

The copy, the teacher, reads the outcome of the action before it scores the action's tokens.

With d_j = log pi_T(y_j | prompt, hindsight) - log pi(y_j | prompt) of response token j, and k the
iteration:

    w_j = clip(exp(sign(A) clip(d_j, -20, 20)), 1 - c, 1 + c)
    A_j = A ((1 - l) + l w_j)                   tokens of the action; others keep A, and so does
                                                a step without hindsight (d_j = NO_HINDSIGHT)
    l   = strength max(0, 1 - k / iterations)

pi is the policy of the update, without a gradient. pi_T is a copy of it, renewed every 10
iterations (`gigpo_jax.learner.teachers`); `.teacher` and `.hindsight` have what it reads. A
wrapper: A is the advantage of `base` (GRPO in the paper).
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.types import StepColumns

# Modes of the authors' code and the parts of each: "feedback": the environment's answer to the
# action; "next": the next prompt; "future": the rest of the episode; "success": another episode of
# the group that did the task. Behind "anchor_": for all actions of the group in the step's state.
CONTEXTS = {
    "immediate_feedback": ("feedback",),
    "next_observation": ("next",),
    "future_trajectory": ("future",),
    "successful_sample_or_immediate_feedback": ("success", "feedback"),
    "successful_sample_immediate_feedback": ("success", "feedback"),
    "successful_sample_next_observation": ("success", "next"),
    "successful_sample_future_trajectory": ("success", "future"),
    "successful_sample_future_trajectory_immediate_feedback": ("success", "future", "feedback"),
    "successful_sample_future_trajectory_next_observation": ("success", "future", "next"),
}
# The teacher's log-probability of every token of a step that has no hindsight.
NO_HINDSIGHT = float("inf")

# Of the authors' scripts.
STRENGTH = 0.5  # share of the weights in the first iteration
WEIGHT_CLIP = 0.2  # largest distance of a token's weight from 1


def serl(
    columns: StepColumns, *, base: Callable[[StepColumns], Advantages], **settings: Any
) -> Advantages:
    """Returns the advantages of `base`; `hindsight_advantages` has the effect."""
    del settings
    return base(columns)


def hindsight_advantages(
    advantage: Array,
    difference: Array,
    action_mask: Array,
    iteration: ArrayLike,
    *,
    iterations: int,
    strength: float = STRENGTH,
    weight_clip: float = WEIGHT_CLIP,
    **settings: Any,
) -> Array:
    """Weighs the advantages of action tokens by hindsight.

    Args:
      advantage: [..., C] f32, A.
      difference: [..., C] f32, d in nats; `NO_HINDSIGHT`: the token keeps A.
      action_mask: [..., C] bool, tokens of the action.
      iteration: [] i32, k, from 0.
      iterations: Number of iterations in which the share falls to 0.
      strength: Share of the weights in the first iteration.
      weight_clip: c, largest distance of a weight to 1.
      **settings: Settings of `base`, not read.

    Returns:
      [..., C] f32.
    """
    del settings
    # The sign turns d into agreement with the advantage: likelier in hindsight weighs more where A
    # > 0, less where A < 0. The inner clip keeps exp finite; the outer one decides.
    weight = jnp.exp(jnp.sign(advantage) * jnp.clip(difference, -20.0, 20.0))
    # The iteration is traced, so one program serves all iterations. From `iterations` on it is 0.
    share = strength * jnp.maximum(0.0, 1.0 - iteration / iterations)
    factor = (1.0 - share) + share * jnp.clip(weight, 1.0 - weight_clip, 1.0 + weight_clip)
    # Infinity marks a step without hindsight. The clips above would make it the largest weight.
    return jnp.where(action_mask & (difference < NO_HINDSIGHT), advantage * factor, advantage)
