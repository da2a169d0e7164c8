"""Advantages from the values of a critic that reads text: a proposal of this project.

`gigpo_jax.methods.text_critic.critic` has the critic.
"""

from dataclasses import replace
from typing import Any

from gigpo_jax.methods.step_ppo.advantages import step_ppo
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.types import StepColumns

LAMBDA = 0.7  # of GAE over steps, our choice


def text_critic(columns: StepColumns, **settings: Any) -> Advantages:
    """Calls StepPO with gamma 1, as the critic's values are undiscounted."""
    del settings
    advantages = step_ppo(columns, gamma=1.0, lam=LAMBDA)
    # The critic learns on the host: no target for the device.
    return replace(advantages, target=None)
