"""Generalised advantage estimation (GAE, arXiv 1506.02438, eq. 16) over steps, tokens, or both.

    d_t = r_t + gamma V_(t+1) - V_t   A_t = d_t + gamma lam A_(t+1)         target of V_t: A_t + V_t

V and A are 0 after the last step of a trajectory and after the last token of a response, also where
the limit of steps or tokens cut it. The methods that use it whiten advantages over all steps or
tokens of an iteration. `rl.preset` has no meaning for them: a penalty is part of the reward of its
step.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from gigpo_jax.rl import segments
from gigpo_jax.rl.types import StepColumns
from gigpo_jax.rl.value_targets import ValueTargets


class Gae(NamedTuple):
    """Estimates for every unmasked step or token, 0 where masked.

    Attributes:
      advantage: f32, not whitened.
      target: f32, target of the critic: advantage + value.
    """

    advantage: Array
    target: Array


@jax.jit
def step_gae(
    reward: Array,
    value: Array,
    trajectory: Array,
    step: Array,
    group: Array,
    mask: Array,
    *,
    gamma: ArrayLike,
    lam: ArrayLike,
) -> Gae:
    """Estimates advantages over the steps of each trajectory.

    Source: StepPO, arXiv 2604.18401. Rows stand in any order. Masked values, NaN included, have no
    effect: the step before a masked one is followed by the one after it, discounted by the
    difference of the step indices.

    Args:
      reward: [N] f32.
      value: [N] f32, value of the state before the response of the step.
      trajectory: [N] i32, trajectory of the step.
      step: [N] i32, index of the step in its trajectory.
      group: [N] i32, task group of the trajectory.
      mask: [N] bool, False for padding.
      gamma: Discount factor from step to step.
      lam: lambda; with 1 and values of 0 the advantage is the discounted return.

    Returns:
      [N] each.
    """
    if mask.shape[0] == 0:
        return Gae(jnp.zeros(0, jnp.float32), jnp.zeros(0, jnp.float32))
    order = segments.lexicographic_order(mask, group, trajectory, step)
    valid = mask[order]
    reward = jnp.where(valid, reward[order], 0.0).astype(jnp.float32)
    value = jnp.where(valid, value[order], 0.0).astype(jnp.float32)
    step = step[order].astype(jnp.int32)
    group = group[order].astype(jnp.int32)
    trajectory = trajectory[order].astype(jnp.int32)
    # `valid` is a key: a masked row may hold the numbers of the last trajectory.
    chain = segments.number_runs(segments.differs_from_previous(valid, group, trajectory), valid)
    # `roll` brings the first row behind the last one, which nothing follows.
    followed = valid & (jnp.roll(chain, -1) == chain) & (jnp.arange(len(chain)) < len(chain) - 1)
    # gamma^w over w steps, as where rows between the two are masked.
    discount = jnp.power(jnp.float32(gamma), (jnp.roll(step, -1) - step).astype(jnp.float32))
    # GAE is the discounted suffix sum of the errors, with discount gamma lam.
    error = reward + jnp.where(followed, discount * jnp.roll(value, -1), 0.0) - value
    advantage, _ = segments.suffix_sums(error, step, chain, jnp.float32(gamma) * lam)
    # One scatter for both results brings them back to the order of the columns.
    ordered = jnp.where(valid[:, None], jnp.stack([advantage, advantage + value], 1), 0.0)
    return Gae(*jnp.zeros_like(ordered).at[order].set(ordered, unique_indices=True).T)


@jax.jit
def token_gae(reward: Array, value: Array, mask: Array, *, gamma: ArrayLike, lam: ArrayLike) -> Gae:
    """Estimates advantages over the tokens of each response, and skips masked tokens as verl does.

    Args:
      reward: [N, R] f32.
      value: [N, R] f32, value of the state before the token.
      mask: [N, R] bool, False for padding and for tokens that the policy did not sample.
      gamma: Discount factor from token to token.
      lam: lambda.

    Returns:
      [N, R] each.
    """
    reward = jnp.where(mask, reward, 0.0).astype(jnp.float32)
    value = jnp.where(mask, value, 0.0).astype(jnp.float32)

    def step_back(
        following: tuple[Array, Array], token: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array], Array]:
        next_value, next_advantage = following
        reward, value, member = token
        advantage = reward + gamma * next_value - value + jnp.float32(gamma) * lam * next_advantage
        # A masked token hands on what it got: its neighbours follow each other.
        carry = (jnp.where(member, value, next_value), jnp.where(member, advantage, next_advantage))
        return carry, jnp.where(member, advantage, 0.0)

    # V and A behind the last token are 0, also where the length limit cut the response.
    end = jnp.zeros(mask.shape[0], jnp.float32)
    # The scan runs over tokens, last one first, so arrays are turned to [R, N]. All
    # rows move together.
    _, advantage = lax.scan(step_back, (end, end), (reward.T, value.T, mask.T), reverse=True)
    return Gae(advantage.T, jnp.where(mask, advantage.T + value, 0.0))


def last_tokens(mask: Array) -> Array:
    """True at each row's last unmasked token, [N, R] bool."""
    # The running count reaches the total at the last True and stays there over the padding.
    return mask & (jnp.cumsum(mask, axis=1) == jnp.sum(mask, axis=1, keepdims=True))


@partial(jax.jit, static_argnames="ddof")
def whiten(values: Array, mask: Array, ddof: int = 1) -> Array:
    """Whitens values by the mean and variance of the unmasked ones: (v - mean) / sqrt(var + 1e-8).

    The variance is unbiased by default, as in verl.

    Args:
      values: f32 of any shape.
      mask: bool, of the same shape.
      ddof: Number subtracted from the count in the variance, 0 or 1.

    Returns:
      f32, 0 where masked.
    """
    count = jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)
    # Centred before squared: E[x^2] - E[x]^2 loses its digits where the mean is large.
    centred = jnp.where(mask, values - jnp.sum(jnp.where(mask, values, 0.0)) / count, 0.0)
    variance = jnp.sum(centred**2) / jnp.maximum(count - ddof, 1.0)
    return centred * lax.rsqrt(variance + 1e-8)


def response_mask(columns: StepColumns) -> Array:
    """[N, R] bool, the response tokens of unmasked rows."""
    position = jnp.arange(columns.token_value.shape[1])
    return (position < columns.tokens[:, None]) & columns.mask[:, None]


@jax.jit
def value_metrics(columns: StepColumns, target: Array) -> dict[str, Array]:
    """Measures the values of the critic before the updates.

    Args:
      columns: Columns of an algorithm with a critic.
      target: [N], [N, R] or [N, V] f32, targets of its `Advantages`; NaN: none.

    Returns:
      The mean value, and the share of the targets' variance that the values explain, 1 - Var(target
      - value) / Var(target), 0 if the targets are all the same; [] f32.
    """
    if target.ndim == 1:
        value = columns.value
        mask = columns.mask
    elif columns.token_value is None:
        value = columns.extra["plan_value"]
        always = columns.mask
        mask = jnp.stack([always, always & columns.extra["plan_start"], always], axis=1)
    else:
        value = columns.token_value
        mask = response_mask(columns) & jnp.isfinite(target)
    count = jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)

    def mean(x: Array) -> Array:
        return jnp.sum(jnp.where(mask, x, 0.0)) / count

    def variance(x: Array) -> Array:
        return mean((x - mean(x)) ** 2)

    total = variance(target)
    # Where with a safe divisor: a division by 0 would make the other branch NaN.
    share = 1.0 - variance(target - value) / jnp.maximum(total, 1e-30)
    explained = jnp.where(total > 0.0, share, 0.0)
    return {"critic/value_mean": mean(value), "critic/explained_variance": explained}


def value_targets(value: np.ndarray, target: np.ndarray, tokens: int) -> ValueTargets:
    """Builds the targets of a critic for one step.

    A target stands before the first response token of the step, or before each of its tokens whose
    target is not NaN.

    Args:
      value: Value of the step, [] f32, or of its tokens, [R or more] f32.
      target: Target of the step, [] f32, or of its tokens, [R or more] f32.
      tokens: R, number of response tokens.
    """
    if target.ndim == 0:
        # The estimate before the first token has read the prompt alone: this is the
        # value of a step.
        return ValueTargets(value, target, np.arange(tokens) == 0)
    targets = target[:tokens]
    return ValueTargets(value[:tokens], targets, np.isfinite(targets).astype(np.float32))
