"""HGPO (arXiv 2602.22817): step advantages in nested groups of steps with the same recent history.

For a step t and levels k = 1 .. min(history + 1, t + 1), t is compared with the steps of its task
whose last k anchor states, the present one included, are the same:

    a_k = (G - mean G) / F                      F with ddof 0, over levels with at least two steps
    A_t = sum over k of w_k a_k
    w_k = L_k^alpha / (sum of L_k^alpha + 1e-6)             L_k = k + 1

Levels with a_k = 0 have no weight. There is no episode term.

The weights count from 2, as in the authors' code; their paper counts from 1. Our choice: a_k within
1e-6 of 0 counts as 0, so that rounding does not turn a level on.
"""

from typing import Any

import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, compute_returns, order_steps
from gigpo_jax.rl.neighbours import previous_values
from gigpo_jax.rl.types import StepColumns


def hgpo(
    columns: StepColumns,
    *,
    history: int,
    alpha: float,
    normalize: str,
    **settings: Any,
) -> Advantages:
    """Weighs the advantages of all levels.

    Args:
      columns: N steps.
      history: K, past steps that the deepest level compares.
      alpha: Exponent of the levels' weights; 0 weighs all levels equally.
      normalize: "mean_std" or "mean".
      **settings: Settings of `gigpo_advantages`. `gamma` and `penalty_in` have an effect.
    """
    steps = order_steps(columns)
    rows = len(steps.valid)
    returns = compute_returns(steps, gamma=settings["gamma"], penalty_in=settings["penalty_in"])
    score = returns.discounted - returns.penalty

    # A segment of level k is a pair: the present anchor, and the segment of level k - 1 in which
    # the previous step stood. So k anchors are compared with one pass a level.
    levels = []
    segment = steps.anchor
    member = steps.valid
    for k in range(1, history + 2):
        if k > 1:
            # The first rows of an episode have fewer than k anchors: N marks them as no
            # members of the level.
            previous_segment = previous_values(steps, segment, rows)
            member = previous_segment < rows
            segment = segments.number_segments(member, steps.anchor, previous_segment)
        # The authors' code has ddof 0, whatever the preset says.
        advantage = segments.compare_values(
            score, score, segment, member, normalize=normalize, ddof=0, eps=1e-6
        )
        # A level without peers has weight 0 below, and leaves the weight to the others.
        has_peers = member & (segments.count_members(segment, member) > 1)
        levels.append((k + 1, jnp.where(has_peers, advantage, 0.0)))

    advantages = jnp.stack([advantage for _, advantage in levels])
    weights = jnp.stack(
        [
            jnp.where(jnp.abs(advantage) > 1e-6, jnp.float32(level) ** alpha, 0.0)
            for level, advantage in levels
        ]
    )
    # 1e-6 is in the formula; it also makes a step without any level 0.
    total = jnp.sum(weights * advantages, 0) / (jnp.sum(weights, 0) + 1e-6)
    total = steps.restore(total)
    return Advantages(total=total, episode=jnp.zeros_like(total), step=total)
