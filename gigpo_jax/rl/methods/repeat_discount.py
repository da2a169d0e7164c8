"""A proposal of this project, after DPEPO (arXiv 2604.24320): actions that repeat themselves earn less.

    W  = (repeat^n + pair^m) / 2
    A' = A W for A >= 0, A (2 - W) else

n counts the earlier steps of the episode with the same action, m those with the same action and the same one before
it. A wrapper: A is the advantage of `base`. DPEPO plays several environments in one context; this is its rule for one,
and not DPEPO.
"""

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, in_order
from gigpo_jax.rl.types import StepColumns


def repeat_discount(
    columns: StepColumns, *, base: Callable[[StepColumns], Advantages], repeat: float, pair: float
) -> Advantages:
    """Discounts the total of `base`, whose parts stay as they are."""
    plain, steps = base(columns), in_order(columns)
    rows = len(steps.valid)
    action = segments.segments_of(steps.valid, steps.trajectory, *columns.action[steps.order].T)
    before = steps.previous(action, rows)
    both = segments.segments_of(before < rows, action, before)
    weight = (repeat ** segments.earlier(action) + pair ** jnp.where(before < rows, segments.earlier(both), 0)) / 2
    total = plain.total[steps.order]
    return replace(plain, total=steps.restored(total * jnp.where(total >= 0.0, weight, 2.0 - weight)))
