"""RLOO (arXiv 2402.14740, eq. 9): an episode is compared with the *other* episodes of its task.

R_i - mean of R_j over j != i is n / (n - 1) times R_i - mean R over all n.
"""

from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.algorithm_types import NO_STEP, Algorithm
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.types import StepColumns


def rloo(columns: StepColumns, **settings: Any) -> Advantages:
    """Leaves an episode's own return out of its baseline, by rescaling GiGPO's episode advantage.

    The step part is zero; `normalize`, `episode_stats` and `step_weight` have no effect.
    """
    settings |= {"normalize": "mean", "episode_stats": "trajectory", "step_weight": 0.0}
    advantages = gigpo(columns, **settings)
    group = segments.number_segments(columns.mask, columns.group)
    trajectory = segments.number_segments(columns.mask, columns.group, columns.trajectory)
    # n counts episodes: one first row each.
    is_first_row = trajectory == jnp.arange(columns.mask.shape[0], dtype=jnp.int32)
    size = segments.count_members(group, is_first_row).astype(jnp.float32)
    # A group of one keeps the advantage of `singleton_episode`.
    episode = advantages.episode * jnp.where(size > 1.0, size / jnp.maximum(size - 1.0, 1.0), 1.0)
    return Advantages(total=episode, episode=episode, step=jnp.zeros_like(episode))


METHOD = Algorithm(advantages=rloo, fixed=NO_STEP | {"normalize": "mean"})
