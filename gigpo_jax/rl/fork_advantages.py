"""Advantages of trajectories that begin in a state of an earlier one (docs/forks.md)."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from gigpo_jax.rl import segments


def compare_forks(
    reward: Array,
    step: Array,
    trajectory: Array,
    anchor: Array,
    valid: Array,
    compare: Callable[..., Array],
) -> Array:
    """Compares each episode's future with the futures of all visits of the episode's first state.

    GRPO compares whole episodes in the same way: they share their first state.

    Args:
      reward: [N] f32, reward less penalty of ordered rows.
      step, trajectory, anchor, valid: Fields of `advantages.Steps`.
      compare: Function `segments.compare_values` with its settings.

    Returns:
      [N] f32.
    """
    _, future = segments.suffix_sums(reward, step, trajectory, 1.0)
    compared = compare(future, future, anchor, valid)
    return compared[jnp.minimum(trajectory, len(compared) - 1)]
