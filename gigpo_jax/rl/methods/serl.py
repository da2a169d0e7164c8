"""SERL (arXiv 2605.19447): a copy of the policy that knows what came of an action weighs the tokens of the action.

With d_j = log pi_T(y_j | prompt, hindsight) - log pi(y_j | prompt) of response token j, and k the iteration:

    w_j = clip(exp(sign(A) clip(d_j, -20, 20)), 1 - c, 1 + c)
    A_j = A ((1 - l) + l w_j)                   tokens of the action; others keep A
    l   = strength max(0, 1 - k / iterations)

pi is the policy of the update, without a gradient. pi_T is a copy of it, renewed every `refresh` iterations;
`gigpo_jax.columns.hindsight` has it and what it reads. A wrapper: A is the advantage of `base` (GRPO in the paper).
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.types import StepColumns


def serl(columns: StepColumns, *, base: Callable[[StepColumns], Advantages], **settings: Any) -> Advantages:
    """Those of `base`; `hindsight_advantages` has the effect."""
    del settings
    return base(columns)


def hindsight_advantages(
    advantage: Array,
    difference: Array,
    action_mask: Array,
    iteration: ArrayLike,
    *,
    strength: float,
    iterations: int,
    weight_clip: float,
    **settings: Any,
) -> Array:
    """The advantages A_j of response tokens.

    Args:
      advantage: [..., C] f32, A.
      difference: [..., C] f32, d in nats.
      action_mask: [..., C] bool, tokens of the action.
      iteration: [] i32, k, from 0.
      strength, iterations: of l.
      weight_clip: c.
      **settings: not read.

    Returns:
      [..., C] f32.
    """
    del settings
    weight = jnp.exp(jnp.sign(advantage) * jnp.clip(difference, -20.0, 20.0))
    part = strength * jnp.maximum(0.0, 1.0 - iteration / iterations)
    factor = (1.0 - part) + part * jnp.clip(weight, 1.0 - weight_clip, 1.0 + weight_clip)
    return jnp.where(action_mask, advantage * factor, advantage)
