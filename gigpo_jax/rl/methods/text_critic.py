"""Advantages from the values of a critic that reads text (`gigpo_jax.columns.text_critic`). Ours, not published."""

from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.gae import step_gae, whiten
from gigpo_jax.rl.types import StepColumns


def text_critic(columns: StepColumns, *, lam: float, **settings: Any) -> Advantages:
    """GAE over steps, whitened over the batch; the episode part is zero.

    Values are undiscounted, with penalties taken off the rewards, so gamma is 1. `settings` have no effect.
    """
    c = columns
    reward = c.reward - c.penalty
    found = step_gae(reward, c.value, c.trajectory, c.step, c.group, c.mask, gamma=1.0, lam=lam)
    step = whiten(found.advantage, c.mask)
    return Advantages(total=step, episode=jnp.zeros_like(step), step=step)
