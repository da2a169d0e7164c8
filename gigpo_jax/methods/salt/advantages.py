"""SALT (arXiv 2510.20022): transitions that episodes share get the mean of their advantages.

    A'(i,t) = mean of A over the rows of the task group with the same (s, a, s')

A wrapper: A is the advantage of `base` (GRPO or RLOO in the paper). We know of no published code,
and the paper's rule of when two edges merge is not known to us. Our choices: equal hashes of anchor
state, action and next anchor state; every row counts, so an episode that repeats an edge counts
each time; last steps have no next state, so those with the same state and action merge.
"""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.types import StepColumns


def salt(columns: StepColumns, *, base: Callable[[StepColumns], Advantages]) -> Advantages:
    """Averages the total of `base` over shared edges; its episode and step parts stay."""
    advantages = base(columns)
    mask = columns.mask
    rows = mask.shape[0]
    # The task is a key: equal transitions of two tasks have different chances of success.
    edge = segments.number_segments(
        mask, columns.group, *columns.anchor.T, *columns.action.T, *columns.next_anchor.T
    )
    count = segments.count_members(edge, mask)
    mean = jax.ops.segment_sum(advantages.total, edge, rows)[edge] / jnp.maximum(count, 1)
    return replace(advantages, total=jnp.where(mask & (count > 1), mean, advantages.total))
