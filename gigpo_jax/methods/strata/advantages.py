"""StraTA (arXiv 2605.06642), its two levels: strategies of a task, episodes of a strategy.

    A(z) = (R(z) - mean R) / F     over the strategies of the task; R(z) is the mean return of the
                                   best share of the episodes of z; for the tokens of z
    A(i) = (R_i - mean R_i) / F    over the episodes of one strategy; for all their actions

Both are the episode advantage of GiGPO, whose preset and normalisation they have. A strategy is one
row, whatever the number of its episodes.

Known from a reading note. Not here, because their definitions are not known: the judge, the policy
itself, which names steps that neither follow the strategy nor help (they have 0.1 less; before or
after the division?), the choice of N among several times N sampled strategies by the distance of
their embeddings (of which model?), and penalties of length and format. Our choices: R contains
penalties as the preset has them for episodes of GiGPO, which for "row" is not at all in R(z), and
the best share is rounded up.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, compute_returns, order_steps
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.neighbours import count_earlier
from gigpo_jax.rl.types import StepColumns

BEST = 0.5  # share of a strategy's episodes, the best ones, whose mean return is its own


def strata(columns: StepColumns, **settings: Any) -> Advantages:
    """Compares strategies of a task, and episodes of a strategy."""
    mask = columns.mask
    is_strategy = mask & columns.summary
    is_step = mask & ~columns.summary
    strategy = segments.number_segments(mask, columns.group, columns.extra["strategy"])
    # Nothing to compare with is no return of its own, unlike in verl-agent's groups of one.
    fixed = {"step_weight": 0.0, "singleton_episode": "zero"}

    def compare(rows: StepColumns) -> Array:
        return gigpo(rows, **settings | fixed).total

    actions = compare(replace(columns, group=strategy, mask=is_step))
    worth = strategy_returns(columns, strategy, is_step, BEST, settings["penalty_in"])
    strategies = compare(
        replace(
            columns,
            reward=worth,
            penalty=jnp.zeros_like(worth),
            trajectory=strategy,
            mask=is_strategy,
        )
    )
    total = actions + strategies
    return Advantages(total=total, episode=total, step=jnp.zeros_like(total))


def strategy_returns(
    columns: StepColumns, strategy: Array, is_step: Array, best: float, penalty_in: Any
) -> Array:
    """The worth of each row's strategy: the mean return of the best share of its episodes.

    Args:
      columns: Columns of N rows.
      strategy: [N] i32, segment of the strategy.
      is_step: [N] bool, rows of steps.
      best: Share of the episodes that count; their number is rounded up.
      penalty_in: Value of `advantages.PenaltyIn`.

    Returns:
      [N] f32.
    """
    rows = len(strategy)
    steps = order_steps(replace(columns, group=strategy, mask=is_step))
    returns = compute_returns(steps, gamma=1.0, penalty_in=penalty_in).episode
    # One row an episode, in the order of the columns.
    is_episode = steps.restore(steps.first_rows & steps.valid) > 0
    episode_return = steps.restore(returns)
    order = jnp.argsort(jnp.where(is_episode, -episode_return, jnp.inf), stable=True)
    member = jnp.where(is_episode, strategy, rows)
    rank = (
        jnp.zeros(rows, jnp.int32).at[order].set(count_earlier(member[order]), unique_indices=True)
    )
    count = segments.count_members(member, is_episode)
    # Less a rounding error: 0.3 of 10 episodes are 3.
    kept = jnp.ceil(best * count - 1e-4)
    counts_here = is_episode & (rank < kept)

    def total(values: Array) -> Array:
        selected = jnp.where(counts_here, values, 0.0)
        return jax.ops.segment_sum(selected, strategy, rows)[strategy]

    return total(episode_return) / jnp.maximum(total(jnp.ones(rows)), 1.0)
