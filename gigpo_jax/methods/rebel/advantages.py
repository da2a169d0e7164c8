"""ReBel (arXiv 2605.20061): stated beliefs are graded, and steps with one belief are compared.

    b_t = state s_t + phase p_t + prediction q_t + format f_t     the column `belief_grade`
    E_t = gamma^(T-1-t) R_i                                       R_i the rewards of the episode
    B_t = sum_{k>=t} gamma^(k-t) b_k
    A_t = A_E(i) + step_weight (S(E_t) + S(B_t))

S subtracts the mean over the rows of the task group with the same key `belief`; a row alone has 0.
A_E is the episode advantage of GiGPO without a division, whose mean is over episodes with every
preset. At last the rows of a task type are standardised, mean and deviation (ddof 1) over its n
rows:

    n >= ROWS               (A - mean) / (deviation + eps); without the division if it is below
                            DEVIATION
    1 < n < ROWS            mean and deviation are n / ROWS its own, the rest from all rows
    n = 1                   A as it is

Source: the authors' code, with the weights of its script. Our choices: means over rows where the
code has means over tokens; penalties are part of A_E alone. The grades, the keys and what differs
there stand in `gigpo_jax.methods.rebel.alfworld`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages, compute_returns, order_steps
from gigpo_jax.rl.gigpo import gigpo
from gigpo_jax.rl.types import StepColumns

WEIGHTS = (0.4, 0.3, 0.2, 0.1)  # of state, phase, prediction and format in a grade
ROWS = 10
DEVIATION = 0.2
_EPS = 1e-6


def rebel(
    columns: StepColumns,
    *,
    gamma: float,
    step_weight: float,
    **settings: Any,
) -> Advantages:
    """Adds both comparisons of beliefs to the episode advantage, and standardises the sums.

    `episode` and `step` of the result are the terms before that standardisation.
    """
    mask = columns.mask
    settings["episode_stats"] = "trajectory"
    episode = gigpo(columns, gamma=gamma, step_weight=0.0, **settings).episode
    # `where` before the product: masked rows may hold NaN.
    grade = jnp.where(mask[:, None], columns.extra["belief_grade"], 0.0) @ jnp.array(
        WEIGHTS, jnp.float32
    )

    steps = order_steps(columns)
    outcome = compute_returns(steps, gamma=1.0, penalty_in="row").episode
    rows = len(mask)
    last_step = jax.ops.segment_max(steps.step, steps.trajectory, rows)[steps.trajectory]
    outcome *= jnp.power(jnp.float32(gamma), (last_step - steps.step).astype(jnp.float32))
    ordered_grade = jnp.where(steps.valid, grade[steps.order], 0.0)
    belief, _ = segments.suffix_sums(ordered_grade, steps.step, steps.trajectory, gamma)

    # The key of the group contains the key of the task type.
    key = columns.extra["belief"]
    peers = segments.number_segments(mask, columns.group, key[:, 0], key[:, 1])

    def compare(ordered: Array) -> Array:
        values = steps.restore(ordered)
        return segments.compare_values(
            values, values, peers, mask, normalize="mean", ddof=1, eps=_EPS
        )

    step = jnp.where(mask, compare(outcome) + compare(belief), 0.0)
    total = episode + jnp.float32(step_weight) * step
    types = segments.number_segments(
        mask, columns.extra["task_type"][:, 0], columns.extra["task_type"][:, 1]
    )
    total = jnp.where(mask, standardize_types(total, types, mask), 0.0)
    return Advantages(total=total, episode=episode, step=step)


def standardize_types(values: Array, types: Array, mask: Array) -> Array:
    """Standardises the values of each task type.

    Args:
      values: [N] f32.
      types: [N] i32, segment of the row's task type.
      mask: [N] bool, rows that count.

    Returns:
      [N] f32; without meaning where masked.
    """
    count = segments.count_members(types, mask)
    mean, deviation = _moments(values, types, mask)
    all_mean, all_deviation = _moments(values, jnp.where(mask, 0, len(mask)), mask)
    share = jnp.minimum(count / ROWS, 1.0)
    is_small = count < ROWS
    # Nothing to mix with: all rows are alike.
    mixes = ~is_small | (all_deviation > _EPS)
    mixed_mean = jnp.where(mixes, share * mean + (1.0 - share) * all_mean, mean)
    mixed_deviation = share * deviation + (1.0 - share) * all_deviation
    divides = jnp.where(is_small, mixes, deviation >= DEVIATION)
    divisor = jnp.where(divides, mixed_deviation + _EPS, 1.0)
    return jnp.where(count > 1, (values - mixed_mean) / divisor, values)


def _moments(values: Array, segment: Array, member: Array) -> tuple[Array, Array]:
    """Mean and deviation of each row's segment, [N] f32 each."""

    def total(x: Array) -> Array:
        return jax.ops.segment_sum(jnp.where(member, x, 0.0), segment, len(member))[segment]

    count = jnp.maximum(segments.count_members(segment, member), 1)
    mean = total(values) / count
    variance = total((values - mean) ** 2) / jnp.maximum(count - 1, 1)
    return mean, jnp.sqrt(variance)
