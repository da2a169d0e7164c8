"""HGPO (arXiv 2602.22817): step advantages in nested groups of steps with the same recent history.

For a step t and levels k = 1 .. min(history + 1, t + 1), t is compared with the steps of its task whose last k anchor
states, the present one included, are the same:

    a_k = (G - mean G) / F                      F with ddof 0, over levels with at least two steps
    A_t = sum over k of w_k a_k                 w_k = L_k^alpha / (sum of L_k^alpha + 1e-6),  L_k = k + weight_offset

Levels with a_k = 0 have no weight. `base_group` adds the episode advantage of GiGPO, over rows, as a level with L = 1.
There is no other episode term.

The authors' code has weight_offset 1 (weights 2, 3, ..), their paper counts from 1 (weight_offset 0). Our choice: a_k
within 1e-6 of 0 counts as 0, so that rounding does not turn a level on.
"""

from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, in_order, returns_of
from gigpo_jax.rl.methods.gigpo import gigpo
from gigpo_jax.rl.types import StepColumns


def hgpo(
    columns: StepColumns,
    *,
    history: int,
    alpha: float,
    weight_offset: int,
    base_group: bool,
    normalize: str,
    **settings: Any,
) -> Advantages:
    """Weighs the advantages of all levels.

    Args:
      columns: N steps.
      history: K, past steps that the deepest level compares.
      alpha: 0 weighs all levels equally.
      weight_offset: 1 or 0, see above.
      base_group: whether there is a level of episodes.
      normalize: "mean_std" or "mean".
      **settings: of `gigpo_advantages`; `gamma` and `penalty_in` have an effect, `ddof` on the level of episodes.
    """
    steps = in_order(columns)
    rows = len(steps.valid)
    returns = returns_of(steps, gamma=settings["gamma"], penalty_in=settings["penalty_in"])
    score = returns.discounted - returns.penalty
    levels = []
    number, member = steps.anchor, steps.valid
    for k in range(1, history + 2):
        if k > 1:
            before = steps.previous(number, rows)
            member = before < rows
            number = segments.segments_of(member, steps.anchor, before)
        a = segments.compare(score, score, number, member, normalize=normalize, ddof=0, eps=1e-6)
        levels.append((k + weight_offset, jnp.where(member & (segments.segment_count(number, member) > 1), a, 0.0)))
    if base_group:
        settings |= {"normalize": normalize, "episode_stats": "step"}
        levels.append((1, gigpo(columns, **settings).episode[steps.order]))
    weights = jnp.stack([jnp.where(jnp.abs(a) > 1e-6, jnp.float32(level) ** alpha, 0.0) for level, a in levels])
    total = jnp.sum(weights * jnp.stack([a for _, a in levels]), 0) / (jnp.sum(weights, 0) + 1e-6)
    total = steps.restored(total)
    return Advantages(total=total, episode=jnp.zeros_like(total), step=total)
