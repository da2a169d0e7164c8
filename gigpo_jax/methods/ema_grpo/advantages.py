"""EMA-GRPO (OneThinker, arXiv 2512.03043): differences in units of a task type's moving deviation.

    A = (R - mean R of the group) / (sigma_k + 1e-6)

with R the return of the episode and sigma_k the column `task_deviation`: the moving deviation of
the returns of task type k over iterations, this one included
(`gigpo_jax.methods.ema_grpo.task_deviations`). A group in which some |A| is greater than `guard` is
divided by its own deviation, of ddof 0, plus 1e-6. So rare and frequent outcomes, and types with
rewards of other sizes, weigh the same.

The formula is from the published code, with decay 0.99, guard 5 and the least deviation 1e-3.
Our choices: a penalty is part of the return, whatever the preset says, as rewards of the format are
there; a group of one episode has advantage 0, and the code refuses it.
"""

from typing import Any

import jax
import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, compute_returns, order_steps
from gigpo_jax.rl.types import StepColumns

# Largest advantage of a group that its task type's deviation divides, as in the published code.
GUARD = 5.0


def ema_grpo(columns: StepColumns, **settings: Any) -> Advantages:
    """Divides differences to the group's mean by the moving deviation; the step part is zero.

    Args:
      columns: N steps.
      **settings: Other settings, without effect.
    """
    del settings
    steps = order_steps(columns)
    rows = len(steps.valid)
    returns = compute_returns(steps, gamma=1.0, penalty_in="reward").episode

    def compare(normalize: str) -> jax.Array:
        return segments.compare_values(
            returns,
            returns,
            steps.group,
            steps.first_rows,
            normalize=normalize,
            ddof=0,
            eps=1e-6,
        )

    scaled = compare("mean") / (columns.extra["task_deviation"][steps.order] + 1e-6)
    # Padding has a deviation of 0, whose quotient must not reach a maximum.
    scaled = jnp.where(steps.valid, scaled, 0.0)
    largest = jax.ops.segment_max(jnp.abs(scaled), steps.group, rows)[steps.group]
    episode = steps.restore(jnp.where(largest > GUARD, compare("mean_std"), scaled))
    return Advantages(total=episode, episode=episode, step=jnp.zeros_like(episode))
