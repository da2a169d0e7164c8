"""Advantages from the values of a critic that reads text (`gigpo_jax.columns.text_critic`). Ours, not published."""

from dataclasses import replace
from typing import Any

from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.methods.step_ppo import step_ppo
from gigpo_jax.rl.types import StepColumns


def text_critic(columns: StepColumns, *, lam: float, **settings: Any) -> Advantages:
    """The advantages of StepPO with gamma 1, for values are undiscounted; `settings` have no effect."""
    del settings
    return replace(step_ppo(columns, gamma=1.0, lam=lam), target=None)  # the critic learns on the host
