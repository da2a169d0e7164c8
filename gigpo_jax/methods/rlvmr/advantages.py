"""RLVMR (arXiv 2507.22844): rules reward the tags of a response; steps with one tag are compared.

    A = A_E + step_weight A_S
    A_S = (s - mean s) / F      over the rows of the task group with the same tag, "no tag" included
    A_E                         the episode advantage of GiGPO, over rows

s is the column `step_reward`; a row alone in its group keeps s. `gigpo_jax.methods.rlvmr.tags`
has the rules. This is the authors' code; their paper has A = A_E / 2 + A_S / 2. Our choice: the
penalty of an invalid action is part of A_E alone.
"""

from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.types import StepColumns


def rlvmr(
    columns: StepColumns, *, step_weight: float, normalize: str, ddof: int, **settings: Any
) -> Advantages:
    """Adds the comparison of steps with the same tag to the episode advantage of GiGPO.

    `gamma` has no effect. The authors' code has `episode_stats="step"`; here the preset decides.
    """
    mask = columns.mask
    settings |= {"step_weight": 0.0, "normalize": normalize, "ddof": ddof}
    episode = gigpo(columns, **settings).episode
    # "No tag" is tag 0, a group of its own, as in the authors' code.
    tag = segments.number_segments(mask, columns.group, columns.extra["tag"])
    reward = jnp.where(mask, columns.extra["step_reward"], 0.0)
    step = segments.compare_values(
        reward, reward, tag, mask, normalize=normalize, ddof=ddof, eps=1e-6
    )
    has_peers = segments.count_members(tag, mask) > 1
    # The reward as it is: the authors' code subtracts no mean from a group of one.
    step = jnp.where(mask, jnp.where(has_peers, step, reward), 0.0)
    return Advantages(total=episode + jnp.float32(step_weight) * step, episode=episode, step=step)
