"""RLOO (arXiv 2402.14740, eq. 9): an episode is compared with the mean of the *other* episodes of its task.

R_i - mean of R_j over j != i is n / (n - 1) times R_i - mean R over all n.
"""

from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.methods.gigpo import gigpo
from gigpo_jax.rl.types import StepColumns


def rloo(columns: StepColumns, **settings: Any) -> Advantages:
    """The step part is zero; `normalize`, `episode_stats` and `step_weight` have no effect."""
    settings |= {"normalize": "mean", "episode_stats": "trajectory", "step_weight": 0.0}
    plain = gigpo(columns, **settings)
    group = segments.segments_of(columns.mask, columns.group)
    trajectory = segments.segments_of(columns.mask, columns.group, columns.trajectory)
    one_a_trajectory = trajectory == jnp.arange(columns.mask.shape[0], dtype=jnp.int32)
    size = segments.segment_count(group, one_a_trajectory).astype(jnp.float32)
    # A group of one keeps the advantage of `singleton_episode`.
    episode = plain.episode * jnp.where(size > 1.0, size / jnp.maximum(size - 1.0, 1.0), 1.0)
    return Advantages(total=episode, episode=episode, step=jnp.zeros_like(episode))
