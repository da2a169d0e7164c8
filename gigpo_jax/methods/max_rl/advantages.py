"""MaxRL (arXiv 2602.02710): returns of a task group in units of their mean.

    A = (R - mean R) / mean R        over the task group

For rewards of 0 and 1 the mean is the success rate: rare successes weigh more than with GRPO. The
divisor is the mean of returns without penalties. Where it is not above 0 the advantage is 0, and
so it is in a group of one episode.
"""

from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl.advantages import Advantages, order_steps
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.neighbours import average_episodes
from gigpo_jax.rl.types import StepColumns


def max_rl(columns: StepColumns, **settings: Any) -> Advantages:
    """Divides the episode advantage by the group's mean return; the step part is zero.

    `normalize`, `episode_stats`, `singleton_episode` and `step_weight` have no effect.
    """
    # The division is done here, so these do not depend on the preset.
    settings |= {
        "normalize": "mean",
        "episode_stats": "trajectory",
        "singleton_episode": "zero",
        "step_weight": 0.0,
    }
    difference = gigpo(columns, **settings).episode
    steps = order_steps(columns)
    mean = steps.restore(average_episodes(steps))
    # The inner `where` keeps the division finite in the branch that is not taken.
    episode = jnp.where(mean > 0.0, difference / jnp.where(mean > 0.0, mean, 1.0), 0.0)
    return Advantages(total=episode, episode=episode, step=jnp.zeros_like(episode))
