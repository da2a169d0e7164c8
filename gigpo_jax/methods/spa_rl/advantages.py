"""SPA-RL (arXiv 2505.20732): a critic splits the outcome of an episode into progress of its steps.

    r_t = c_t + 0.5 g_t

c_t is the critic's value before the last token of response t, so of nearly the whole response; g_t
is 1 for an executable action and for the last step, else 0. Summaries and strategies are no steps:
they have c_t alone. The base learns from these rewards in place of the environment's, without
penalties. The critic's loss is, with R the sum of an episode's rewards,

    (sum_t c_t - R)^2 / 2

The sum is taken before the updates, and the n steps share what is missing: the target of c_t is
c_t + (R - sum_t c_t) / n, and targets add up to R. In the first minibatch the gradient is the
gradient of the loss divided by n. Departures from the authors' code: it trains the estimator
before, on episodes of a warm-started policy, and keeps it; there PPO with another critic learns
from the rewards, over tokens. With a longer episode the sum of g grows, there and here.
"""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.gae import last_tokens, response_mask
from gigpo_jax.rl.types import StepColumns

# Reward of an executable action, that of the authors' code, where a won episode has the reward 1.
GROUNDING = 0.5


def spa_rl(columns: StepColumns, *, base: Callable[[StepColumns], Advantages]) -> Advantages:
    """Calls the base with rewards of progress; the targets are the critic's."""
    mask = columns.mask
    rows = len(mask)
    last = last_tokens(response_mask(columns))
    progress = jnp.sum(jnp.where(last, columns.token_value, 0.0), axis=1)
    # Numbers of trajectories are distinct within a group alone, so the group is a key too.
    episode = segments.number_segments(mask, columns.group, columns.trajectory)
    missing = jnp.where(mask, columns.reward - progress, 0.0)
    # Without the division, values that fit their targets would miss R by n times as much.
    steps = jnp.maximum(segments.count_members(episode, mask), 1)
    error = jax.ops.segment_sum(missing, episode, rows)[episode] / steps
    last_step = jax.ops.segment_max(jnp.where(mask, columns.step, -1), episode, rows)[episode]
    is_action = mask if columns.summary is None else mask & ~columns.summary
    # A summary has the number of the step after it.
    is_grounded = columns.extra["executable"] | (is_action & (columns.step == last_step))
    reward = jnp.where(mask, progress + GROUNDING * is_grounded, 0.0)
    changed = replace(columns, reward=reward, penalty=jnp.zeros_like(columns.penalty))
    # NaN: no target. The critic learns before the last token of a response alone.
    target = jnp.where(last, (progress + error)[:, None], jnp.nan)
    return replace(base(changed), target=target)
