"""Repeated actions earn less: a proposal of this project, after DPEPO (arXiv 2604.24320).

    W  = (repeat^n + pair^m) / 2
    A' = A W for A >= 0, A (2 - W) else

n counts the earlier steps of the episode with the same action, m those with the same action and the
same one before it. A wrapper: A is the advantage of `base`. A summary is no action: it counts for
nothing and keeps its advantage. DPEPO plays several environments in one
context; this is its rule for one, and not DPEPO.
"""

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp

from gigpo_jax.core.settings import FRACTION, Setting
from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, order_steps
from gigpo_jax.rl.algorithm_types import BASE, Algorithm
from gigpo_jax.rl.neighbours import count_earlier, previous_values
from gigpo_jax.rl.shared_settings import BASE_GRPO
from gigpo_jax.rl.types import StepColumns

PAIR = 0.95  # factor for each earlier step with the same two last actions, DPEPO's


def repeat_discount(
    columns: StepColumns, *, base: Callable[[StepColumns], Advantages], repeat: float
) -> Advantages:
    """Discounts the total advantages of `base`, and keeps their episode and step parts."""
    advantages = base(columns)
    summaries = jnp.zeros_like(columns.mask) if columns.summary is None else columns.summary
    steps = order_steps(replace(columns, mask=columns.mask & ~summaries))
    rows = len(steps.valid)

    # The trajectory is a key: only repeats within an episode count.
    action = segments.number_segments(steps.valid, steps.trajectory, *columns.action[steps.order].T)
    previous_action = previous_values(steps, action, rows)
    # The first row of an episode has no pair, and N is no action.
    has_previous = previous_action < rows
    action_pair = segments.number_segments(has_previous, action, previous_action)
    # Rows are in the order of steps, so earlier rows are earlier steps.
    repeats = count_earlier(action)
    pair_repeats = jnp.where(has_previous, count_earlier(action_pair), 0)
    weight = (repeat**repeats + PAIR**pair_repeats) / 2

    total = advantages.total[steps.order]
    # W is at most 1. A negative advantage times W would be a smaller punishment for a repeat, so it
    # is multiplied by 2 - W.
    discounted = total * jnp.where(total >= 0.0, weight, 2.0 - weight)
    kept = jnp.where(summaries, advantages.total, 0.0)
    return replace(advantages, total=steps.restore(discounted) + kept)


METHOD = Algorithm(
    advantages=repeat_discount,
    columns=("action",),
    settings={
        BASE: BASE_GRPO,
        # DPEPO's, as `PAIR`.
        "repeat": Setting(0.8, "factor for each earlier step with the same action", FRACTION),
    },
)
