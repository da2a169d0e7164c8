"""GAE over steps and then over the tokens of each response (RAGEN, arXiv 2504.20073, and VAGEN)."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.gae import Gae, last_tokens, response_mask, step_gae, token_gae
from gigpo_jax.rl.ppo import whiten_tokens
from gigpo_jax.rl.types import StepColumns

# Discount factor from token to token, of both scripts.
TOKEN_GAMMA = 1.0


def bilevel(columns: StepColumns, *, gamma: float, lam: float, **_: Any) -> Advantages:
    """Whitens the advantages of `bilevel_gae`."""
    mask = response_mask(columns)
    estimates = bilevel_gae(
        # Each step has a reward of its own here, so a penalty is part of it, whatever
        # the preset says.
        columns.reward - columns.penalty,
        columns.token_value,
        mask,
        trajectory=columns.trajectory,
        step=columns.step,
        group=columns.group,
        mask=columns.mask,
        gamma=gamma,
        lam=lam,
        token_gamma=TOKEN_GAMMA,
    )
    return whiten_tokens(estimates, mask)


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
    """Estimates advantages over steps, then from their targets over tokens.

    Source: RAGEN and VAGEN, arXiv 2504.20073. GAE over steps reads the value of a step at the last
    token of its response. Its target takes the place of the reward at that token, and GAE over the
    tokens of the response follows.

    Args:
      reward: [N] f32.
      value: [N, R] f32, value of the state before the token.
      token_mask: [N, R] bool, False for padding and for tokens that the policy did not sample.
      trajectory: [N] i32, trajectory of the step.
      step: [N] i32, index of the step in its trajectory.
      group: [N] i32, task group of the trajectory.
      mask: [N] bool, False for padding; other rows have at least one token.
      gamma: Discount factor from step to step.
      lam: lambda of both levels.
      token_gamma: Discount factor from token to token.

    Returns:
      [N, R] each.
    """
    token_mask = token_mask & mask[:, None]
    last = last_tokens(token_mask)
    # RAGEN reads the value of a step at the last token of the response, StepPO at
    # that of the prompt.
    last_value = jnp.sum(jnp.where(last, value, 0.0), axis=1)
    target = step_gae(
        reward, last_value, trajectory, step, group, mask, gamma=gamma, lam=lam
    ).target
    # The target, not the advantage: GAE over tokens subtracts the values of the tokens itself.
    token_reward = jnp.where(last, target[:, None], 0.0)
    return token_gae(token_reward, value, token_mask, gamma=token_gamma, lam=lam)
