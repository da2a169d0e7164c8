"""Lite PPO (arXiv 2508.08221): the mean of the task group, the standard deviation of the batch.

    A = (R - mean R of the group) / (standard deviation of R over the batch + 1e-6)

A group of few episodes estimates its mean well and its deviation badly. Our choices: the deviation
runs over the episodes of the batch, around their own mean, and has no penalties of single rows. A
batch of equal returns and a group of one episode have advantage 0.
"""

from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, PenaltyIn, compute_returns, order_steps
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.types import StepColumns


def lite_ppo(
    columns: StepColumns, *, ddof: int, penalty_in: PenaltyIn, **settings: Any
) -> Advantages:
    """Divides differences to the group's mean by the batch's deviation; the step part is zero.

    `normalize`, `episode_stats`, `singleton_episode` and `step_weight` have no effect.
    """
    # The division is done here, so these do not depend on the preset.
    settings |= {
        "normalize": "mean",
        "episode_stats": "trajectory",
        "singleton_episode": "zero",
        "step_weight": 0.0,
    }
    difference = gigpo(columns, ddof=ddof, penalty_in=penalty_in, **settings).episode
    steps = order_steps(columns)
    returns = compute_returns(steps, gamma=1.0, penalty_in=penalty_in).episode
    is_first_row = steps.first_rows
    # One segment with all valid rows: `compare_values` has the careful mean.
    batch = jnp.where(steps.valid, 0, len(returns))
    centred = segments.compare_values(
        returns, returns, batch, is_first_row, normalize="mean", ddof=ddof, eps=0.0
    )
    squares = jnp.sum(jnp.where(is_first_row, centred**2, 0.0))
    deviation = jnp.sqrt(squares / jnp.maximum(jnp.sum(is_first_row) - ddof, 1))
    episode = jnp.where(deviation > 0.0, difference / (deviation + 1e-6), 0.0)
    return Advantages(total=episode, episode=episode, step=jnp.zeros_like(episode))
