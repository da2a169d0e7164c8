"""Generalised advantage estimation (GAE, arXiv 1506.02438, eq. 16) over steps, over tokens, and over both.

    d_t = r_t + gamma V_(t+1) - V_t            A_t = d_t + gamma lam A_(t+1)            target of V_t: A_t + V_t

V and A are 0 after the last step of a trajectory and after the last token of a response, also where the limit of steps
or tokens cut it. The methods that use it whiten advantages over all steps or tokens of an iteration. `rl.preset` has no
meaning for them: a penalty is part of the reward of its step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from gigpo_jax.rl import segments
from gigpo_jax.rl.types import StepColumns, ValueTargets


class Gae(NamedTuple):
    """Estimates for every unmasked step or token, 0 where masked.

    Attributes:
      advantage: f32, not whitened.
      target: f32, what the critic learns: advantage + value.
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
    """Estimates advantages over the steps of each trajectory (StepPO, arXiv 2604.18401).

    Rows stand in any order. Masked values, NaN included, have no effect: the step before a masked one is followed by
    the one after it, discounted by the difference of the step indices.

    Args:
      reward: [N] f32.
      value: [N] f32, of the state before the response of the step.
      trajectory, step, group, mask: see `StepColumns`.
      gamma: discount.
      lam: lambda; with 1 and values of 0 the advantage is the discounted return.

    Returns:
      [N] each.
    """
    if mask.shape[0] == 0:
        return Gae(jnp.zeros(0, jnp.float32), jnp.zeros(0, jnp.float32))
    order = segments.lexicographic_order(mask, group, trajectory, step)
    valid = mask[order]
    reward, value = (jnp.where(valid, x[order], 0.0).astype(jnp.float32) for x in (reward, value))
    step, group, trajectory = (x[order].astype(jnp.int32) for x in (step, group, trajectory))
    chain = segments.runs(segments.differs_from_previous(valid, group, trajectory), valid)
    followed = valid & (jnp.roll(chain, -1) == chain) & (jnp.arange(len(chain)) < len(chain) - 1)
    discount = jnp.power(jnp.float32(gamma), (jnp.roll(step, -1) - step).astype(jnp.float32))
    error = reward + jnp.where(followed, discount * jnp.roll(value, -1), 0.0) - value
    advantage, _ = segments.suffix_sums(error, step, chain, jnp.float32(gamma) * lam)
    ordered = jnp.where(valid[:, None], jnp.stack([advantage, advantage + value], 1), 0.0)
    return Gae(*jnp.zeros_like(ordered).at[order].set(ordered, unique_indices=True).T)


@jax.jit
def token_gae(reward: Array, value: Array, mask: Array, *, gamma: ArrayLike, lam: ArrayLike) -> Gae:
    """Estimates advantages over the tokens of each response; masked tokens are skipped, as verl does.

    Args:
      reward: [N, R] f32.
      value: [N, R] f32, of the state before the token.
      mask: [N, R] bool, False for padding and for tokens that the policy did not sample.
      gamma, lam: as for `step_gae`.

    Returns:
      [N, R] each.
    """
    reward, value = (jnp.where(mask, x, 0.0).astype(jnp.float32) for x in (reward, value))

    def back(after: tuple[Array, Array], token: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], Array]:
        next_value, next_advantage = after
        reward, value, member = token
        advantage = reward + gamma * next_value - value + jnp.float32(gamma) * lam * next_advantage
        carry = (jnp.where(member, value, next_value), jnp.where(member, advantage, next_advantage))
        return carry, jnp.where(member, advantage, 0.0)

    end = jnp.zeros(mask.shape[0], jnp.float32)
    _, advantage = lax.scan(back, (end, end), (reward.T, value.T, mask.T), reverse=True)
    return Gae(advantage.T, jnp.where(mask, advantage.T + value, 0.0))


@jax.jit
def bilevel_gae(
    reward: Array,
    value: Array,
    token_mask: Array,
    trajectory: Array,
    step: Array,
    group: Array,
    mask: Array,
    *,
    gamma: ArrayLike,
    lam: ArrayLike,
    token_gamma: ArrayLike,
) -> Gae:
    """Estimates advantages over steps, and from their targets over tokens (RAGEN, arXiv 2504.20073, and VAGEN).

    GAE over steps reads the value of a step at the last token of its response. Its target takes the place of the
    reward at that token, and GAE over the tokens of the response follows.

    Args:
      reward: [N] f32.
      value: [N, R] f32, of the state before the token.
      token_mask: [N, R] bool, as for `token_gae`.
      trajectory, step, group, mask: see `StepColumns`; an unmasked row has at least one unmasked token.
      gamma: discount from step to step.
      lam: lambda of both levels.
      token_gamma: discount from token to token.

    Returns:
      [N, R] each.

    Ten parameters: like the other estimators it takes columns one by one, so that it can be used without `StepColumns`.
    """
    token_mask = token_mask & mask[:, None]
    last = last_tokens(token_mask)
    end = jnp.sum(jnp.where(last, value, 0.0), axis=1)
    target = step_gae(reward, end, trajectory, step, group, mask, gamma=gamma, lam=lam).target
    return token_gae(jnp.where(last, target[:, None], 0.0), value, token_mask, gamma=token_gamma, lam=lam)


def last_tokens(mask: Array) -> Array:
    """[N, R] bool, True at the last unmasked token of each row."""
    return mask & (jnp.cumsum(mask, axis=1) == jnp.sum(mask, axis=1, keepdims=True))


@jax.jit
def whiten(values: Array, mask: Array) -> Array:
    """Scales values by mean and unbiased variance of the unmasked ones, (v - mean) / sqrt(var + 1e-8), as verl does.

    Args:
      values: f32 of any shape.
      mask: bool, of the same shape.

    Returns:
      f32, 0 where masked.
    """
    count = jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)
    centred = jnp.where(mask, values - jnp.sum(jnp.where(mask, values, 0.0)) / count, 0.0)
    variance = jnp.sum(centred**2) / jnp.maximum(count - 1.0, 1.0)
    return centred * lax.rsqrt(variance + 1e-8)


def response_mask(columns: StepColumns) -> Array:
    """[N, R] bool, the response tokens of unmasked rows."""
    place = jnp.arange(columns.token_value.shape[1])
    return (place < columns.tokens[:, None]) & columns.mask[:, None]


@jax.jit
def value_metrics(columns: StepColumns, target: Array) -> dict[str, Array]:
    """How good the critic was before the updates.

    Args:
      columns: as for an algorithm with a critic.
      target: [N] or [N, R] f32, as in its `Advantages`.

    Returns:
      The mean value, and the share of the targets' variance that the values explain, 1 - Var(target - value) /
      Var(target), 0 if the targets are all the same; [] f32.
    """
    value, mask = (columns.value, columns.mask) if target.ndim == 1 else (columns.token_value, response_mask(columns))
    count = jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)

    def mean(x: Array) -> Array:
        return jnp.sum(jnp.where(mask, x, 0.0)) / count

    def variance(x: Array) -> Array:
        return mean((x - mean(x)) ** 2)

    whole = variance(target)
    explained = jnp.where(whole > 0.0, 1.0 - variance(target - value) / jnp.maximum(whole, 1e-30), 0.0)
    return {"critic/value_mean": mean(value), "critic/explained_variance": explained}


def value_targets(value: np.ndarray, target: np.ndarray, tokens: int) -> ValueTargets:
    """What a critic learns of one step with so many response tokens: before the first, or before each of them.

    Args:
      value, target: [] f32 of the step, or [R or more] f32 of its tokens.
      tokens: R.
    """
    if target.ndim == 0:
        return ValueTargets(value, target, np.arange(tokens) == 0)
    return ValueTargets(value[:tokens], target[:tokens], 1.0)
