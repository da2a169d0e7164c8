"""StepPO (arXiv 2604.18401); also the advantage of Turn-PPO (arXiv 2512.17008)."""

from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.gae import step_gae, whiten
from gigpo_jax.rl.types import StepColumns


def step_ppo(columns: StepColumns, *, gamma: float, lam: float, **_: Any) -> Advantages:
    """Whitens GAE over steps; the episode part is zero."""
    estimates = step_gae(
        # Each step has a reward of its own here, so a penalty is part of it, whatever
        # the preset says.
        columns.reward - columns.penalty,
        columns.value,
        columns.trajectory,
        columns.step,
        columns.group,
        columns.mask,
        gamma=gamma,
        lam=lam,
    )
    # The unbiased variance and 1e-8 of verl, in place of `compare_values` with its 1e-6.
    step = whiten(estimates.advantage, columns.mask)
    return Advantages(total=step, episode=jnp.zeros_like(step), step=step, target=estimates.target)
