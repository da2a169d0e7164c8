"""StepPO (arXiv 2604.18401); also the advantage of Turn-PPO (arXiv 2512.17008)."""

from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.gae import step_gae, whiten
from gigpo_jax.rl.types import StepColumns


def step_ppo(columns: StepColumns, *, gamma: float, lam: float, **_: Any) -> Advantages:
    """GAE over steps, whitened; the episode part is zero."""
    c = columns
    found = step_gae(c.reward - c.penalty, c.value, c.trajectory, c.step, c.group, c.mask, gamma=gamma, lam=lam)
    step = whiten(found.advantage, c.mask)
    return Advantages(total=step, episode=jnp.zeros_like(step), step=step, target=found.target)
