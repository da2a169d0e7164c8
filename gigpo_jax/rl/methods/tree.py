"""A proposal of this project: episodes of a task as a tree of states; a step earns the mean return below its node.

A node is what a step stands at: the anchor state and the set of actions that its episode took before. With R the return
of an episode:

    Q(node) = mean of R over the episodes of the task that pass the node, each once
    A(i,t)  = (Q(node of (i,t)) - mean R) / F           over the task group

T-STAR (arXiv 2604.07165) averages over a tree too; its thresholds, its loss and its code are not known to us, and this
is not T-STAR. With `penalty_in="row"` the penalty of a step is taken from its Q alone.
"""

from typing import Any

import jax
import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, PenaltyIn, in_order, returns_of
from gigpo_jax.rl.types import StepColumns


def tree(columns: StepColumns, *, penalty_in: PenaltyIn, normalize: str, ddof: int, **settings: Any) -> Advantages:
    """The step part is zero; `gamma`, `step_weight` and `episode_stats` have no effect."""
    del settings
    steps = in_order(columns)
    index = jnp.arange(len(steps.valid), dtype=jnp.int32)
    actions = columns.action[steps.order]
    first = steps.valid & (segments.earlier(segments.segments_of(steps.valid, steps.trajectory, *actions.T)) == 0)
    # A set is the sum of its members' hashes, modulo 2^32 in each lane.
    sums = jnp.cumsum(jnp.where(first[:, None], actions, 0), 0, dtype=jnp.uint32)
    start = jnp.where(steps.valid, steps.trajectory, 0)
    taken = sums - sums[start] + actions[start] - jnp.where(first[:, None], actions, 0)
    node = segments.segments_of(steps.valid, steps.anchor, *taken.T)
    once = segments.segments_of(steps.valid, node, steps.trajectory) == index
    _, returns, penalty = returns_of(steps, gamma=1.0, penalty_in=penalty_in)
    passing = jnp.where(once, returns, 0.0)
    q = jax.ops.segment_sum(passing, node, len(index))[node] / jnp.maximum(segments.segment_count(node, once), 1)
    member = steps.trajectory == index
    total = segments.compare(q - penalty, returns, steps.group, member, normalize=normalize, ddof=ddof, eps=1e-6)
    total = jnp.where(segments.segment_count(steps.group, member) > 1, total, 0.0)
    total = steps.restored(total)
    return Advantages(total=total, episode=total, step=jnp.zeros_like(total))
