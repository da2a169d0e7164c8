"""OPRL, also iStar (arXiv 2509.19199): implicit rewards of a copy that is trained on preferences.

    A = A_E + step_weight A_S
    A_S = (r - mean r) / F      over all rows of the task group
    A_E                         the episode advantage of GiGPO

r is the column `implicit_reward`; `gigpo_jax.methods.oprl.implicit_rewards` has the copy. The
authors' code takes mean and deviation of r over the first rows of trajectories alone, and has other
factors; this is their text. Our choice: the penalty of an invalid action is part of A_E alone.
"""

from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.types import StepColumns


def oprl(
    columns: StepColumns,
    *,
    copy_lr: float,
    step_weight: float,
    normalize: str,
    ddof: int,
    **settings: Any,
) -> Advantages:
    """Adds compared implicit rewards to GiGPO's episode advantage."""
    del copy_lr  # of the copy
    mask = columns.mask
    settings |= {"step_weight": 0.0, "normalize": normalize, "ddof": ddof}
    episode = gigpo(columns, **settings).episode
    group = segments.number_segments(mask, columns.group)
    reward = jnp.where(mask, columns.extra["implicit_reward"], 0.0)
    step = segments.compare_values(
        reward, reward, group, mask, normalize=normalize, ddof=ddof, eps=1e-6
    )
    return Advantages(total=episode + jnp.float32(step_weight) * step, episode=episode, step=step)
