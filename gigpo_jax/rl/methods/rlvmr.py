"""RLVMR (arXiv 2507.22844): rules reward the tags that a response thinks under; steps of a tag are compared.

    A = A_E + step_weight A_S
    A_S = (s - mean s) / F                      over the rows of the task group with the same tag, "no tag" included
    A_E                                         the episode advantage of GiGPO, over rows

s is the column `step_reward`; a row alone in its group keeps s. `gigpo_jax.columns.tagged` has the rules. This is the
authors' code; their paper has A = A_E / 2 + A_S / 2. Our choice: the penalty of an invalid action is part of A_E alone.
"""

from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.methods.gigpo import gigpo
from gigpo_jax.rl.types import StepColumns


def rlvmr(columns: StepColumns, *, step_weight: float, normalize: str, ddof: int, **settings: Any) -> Advantages:
    """`gamma` has no effect; `episode_stats` of the authors' code is "step", that of the preset counts."""
    settings |= {"step_weight": 0.0, "normalize": normalize, "ddof": ddof}
    episode, mask = gigpo(columns, **settings).episode, columns.mask
    tag = segments.segments_of(mask, columns.group, columns.tag)
    reward = jnp.where(mask, columns.step_reward, 0.0)
    step = segments.compare(reward, reward, tag, mask, normalize=normalize, ddof=ddof, eps=1e-6)
    step = jnp.where(mask, jnp.where(segments.segment_count(tag, mask) > 1, step, reward), 0.0)
    return Advantages(total=episode + jnp.float32(step_weight) * step, episode=episode, step=step)
