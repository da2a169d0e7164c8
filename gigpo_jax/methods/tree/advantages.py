"""Episodes of a task as a tree: a step earns the mean return of its node.

A proposal of this project. The node of a step is its anchor state with the set of earlier actions
of its episode. With R the return of an episode:

    Q(node) = mean of R over the episodes of the task that pass the node, each once
    A(i,t)  = (Q(node of (i,t)) - mean R) / F           over the task group

T-STAR (arXiv 2604.07165) averages over a tree too; its thresholds, its loss and its code are not
known to us, and this is not T-STAR. With `penalty_in="row"` the penalty of a step is taken from its
Q alone.
"""

from typing import Any

import jax
import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, PenaltyIn, compute_returns, order_steps
from gigpo_jax.rl.neighbours import count_earlier
from gigpo_jax.rl.types import StepColumns


def tree(
    columns: StepColumns, *, penalty_in: PenaltyIn, normalize: str, ddof: int, **settings: Any
) -> Advantages:
    """Compares a step's node value with the task's returns; the step part is zero.

    `gamma`, `step_weight` and `episode_stats` have no effect.
    """
    del settings
    steps = order_steps(columns)
    rows = len(steps.valid)
    index = jnp.arange(rows, dtype=jnp.int32)
    actions = columns.action[steps.order]
    # A set has each action once, so only the first row of an action in its episode adds to the sum.
    action_number = segments.number_segments(steps.valid, steps.trajectory, *actions.T)
    is_new_action = steps.valid & (count_earlier(action_number) == 0)

    # A set is the sum of its members' hashes, modulo 2^32 in each lane: its order does not matter,
    # and a running sum over the rows gives the sets of all steps at once.
    new_actions = jnp.where(is_new_action[:, None], actions, 0)
    sums = jnp.cumsum(new_actions, 0, dtype=jnp.uint32)
    # The running sum goes over all episodes. What it had before the first row of this one is taken
    # off; the action of a first row is always new. The row's own action is not an earlier one.
    start = jnp.where(steps.valid, steps.trajectory, 0)
    earlier_actions = sums - sums[start] + actions[start] - new_actions
    node = segments.number_segments(steps.valid, steps.anchor, *earlier_actions.T)

    # An episode that comes to a node twice counts once.
    is_first_visit = segments.number_segments(steps.valid, node, steps.trajectory) == index
    _, returns, penalty = compute_returns(steps, gamma=1.0, penalty_in=penalty_in)
    visit_returns = jnp.where(is_first_visit, returns, 0.0)
    visits = jnp.maximum(segments.count_members(node, is_first_visit), 1)
    q = jax.ops.segment_sum(visit_returns, node, rows)[node] / visits

    # The mean of the returns counts each episode once, while every row has a q of its own.
    member = steps.trajectory == index
    total = segments.compare_values(
        q - penalty, returns, steps.group, member, normalize=normalize, ddof=ddof, eps=1e-6
    )
    total = jnp.where(segments.count_members(steps.group, member) > 1, total, 0.0)
    total = steps.restore(total)
    return Advantages(total=total, episode=total, step=jnp.zeros_like(total))
