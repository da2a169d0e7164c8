"""VinePPO (arXiv 2410.01679): values of states from continuations of each.

With the states s of an episode, each the task with all actions before it:

    V(s)     = mean return of the episodes of the group that begin in s
    A(i,t)   = r_t - p_t + V(s_(t+1)) - V(s_t)                V = 0 after the last step

Continuations of later states are forks, continuations of the start whole episodes. The forks of a
group are limited, so a state may have none: steps between two states with values share the
advantage

    A        = sum of their r - p + V(the next such state) - V(the last one)

as the tokens of one reasoning step do in the paper. Continuations give values and are in no loss.

Our choices: penalties are part of rewards; the return of an episode is part of the value of the
start, but not of the values of its later states. An episode that alone begins at the start would be
compared with itself there: until its first fork it has the advantage 0.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, order_steps
from gigpo_jax.rl.graph import ROUNDING, largest_rewards
from gigpo_jax.rl.neighbours import following_values
from gigpo_jax.rl.types import StepColumns


def vineppo(columns: StepColumns, **settings: Any) -> Advantages:
    """Compares the values of neighbouring states; no setting has an effect."""
    del settings
    steps = order_steps(replace(columns, anchor=columns.past))
    rows = len(steps.valid)
    state = jnp.minimum(steps.anchor, rows - 1)
    reward = steps.reward - steps.penalty
    _, future = segments.suffix_sums(reward, steps.step, steps.trajectory, 1.0)

    begins = steps.first_rows & steps.valid
    count = segments.count_members(steps.anchor, begins)
    total = jax.ops.segment_sum(jnp.where(begins, future, 0.0), steps.anchor, rows)[state]
    has_value = steps.valid & (count > 0)
    value = jnp.where(has_value, total / jnp.maximum(count, 1), 0.0)
    # The sum over steps without values between telescopes.
    gain = reward + following_values(steps, value, 0.0) - value
    span = segments.number_runs(has_value, steps.valid)
    # A span has the number of its first row.
    first_row = jnp.minimum(span, rows - 1)
    advantage = jax.ops.segment_sum(gain, span, rows)[first_row]
    is_alone = (begins & (count == 1))[first_row]
    # What is left of equal values is rounding, which an optimizer would blow up.
    is_rounding = jnp.abs(advantage) <= ROUNDING * largest_rewards(steps, reward)
    advantage = jnp.where(is_rounding | is_alone, 0.0, advantage)

    learned = steps.restore(steps.whole) > 0
    step = jnp.where(learned, steps.restore(advantage), 0.0)
    return Advantages(total=step, episode=jnp.zeros_like(step), step=step, learned=learned)
