"""HCAPO (arXiv 2603.08754): hindsight of the policy weighs the returns of steps.

With T steps in an episode, t from 0, and h_t the mean log-probability of the tokens of response t
when the policy reads the episode's end first (the column `hindsight_logprob`):

    p_t   = exp(h_t / 5)
    rho_t = clip(p_t / mean of p over the episode, 1 - c, 1 + c)
    Q_t   = rho_t gamma^(T - t) R
    A     = A_E + step_weight z(Q)            z over all rows of the task group;
                                              0 in place of a negative z(Q) in a successful episode

Our choices: R is the return without penalties, which count in A_E alone; an episode is successful
if R > 0; the smoothed form, half of Q_(t+1), is not here. `gigpo_jax.methods.hcapo.episode_ends`
has the scoring pass and what the policy reads.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, Normalize, compute_returns, order_steps
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.types import StepColumns

TEMPERATURE = 5.0  # divisor of log-probabilities in hindsight, the paper's
RATIO_CLIP = 0.2  # largest distance of a step's weight to 1, the paper's


def hcapo(
    columns: StepColumns,
    *,
    gamma: ArrayLike,
    step_weight: ArrayLike,
    normalize: Normalize,
    ddof: int,
    **settings: Any,
) -> Advantages:
    """Adds a step's standardised hindsight return to its episode's advantage."""
    common = {"gamma": gamma, "normalize": normalize, "ddof": ddof}
    episode = gigpo(columns, step_weight=0.0, **common, **settings).episode
    steps = order_steps(columns)
    rows = len(steps.valid)
    hindsight = jnp.where(steps.valid, columns.extra["hindsight_logprob"][steps.order], 0.0)
    # Log-probabilities are at most 0, so the exponential cannot overflow.
    probability = jnp.where(steps.valid, jnp.exp(hindsight / TEMPERATURE), 0.0)
    length = segments.count_members(steps.trajectory, steps.valid)
    total = jax.ops.segment_sum(probability, steps.trajectory, rows)[steps.trajectory]
    # All p of an episode may underflow to 0; the ratio is then 0, and the clip makes it 1 - c.
    ratio = probability * length / jnp.maximum(total, jnp.finfo(jnp.float32).tiny)
    ratio = jnp.clip(ratio, 1.0 - RATIO_CLIP, 1.0 + RATIO_CLIP)

    # Without penalties: with them a won episode could count as a lost one below.
    score = compute_returns(steps, gamma=1.0, penalty_in="row").episode
    last_step = jax.ops.segment_max(steps.step, steps.trajectory, rows)[steps.trajectory]
    # t counts from 0 and T is the number of steps, so T - t is 1 at the last one.
    steps_left = (last_step - steps.step + 1).astype(jnp.float32)
    value = ratio * jnp.power(jnp.float32(gamma), steps_left) * score
    value = jnp.where(steps.valid, value, 0.0)
    step_advantage = segments.compare_values(
        value, value, steps.group, steps.valid, normalize=normalize, ddof=ddof, eps=1e-6
    )
    # z takes off a mean over all rows of the task: a step of a success that has a small weight
    # can fall below it.
    blames_success = (score > 0.0) & (step_advantage < 0.0)
    step = steps.restore(jnp.where(blames_success, 0.0, step_advantage))
    return Advantages(total=episode + jnp.float32(step_weight) * step, episode=episode, step=step)
