"""PPO (arXiv 1707.06347) as verl-agent trains its baseline."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.gae import Gae, last_tokens, response_mask, token_gae, whiten
from gigpo_jax.rl.types import StepColumns


def ppo(columns: StepColumns, *, gamma: float, lam: float, **_: Any) -> Advantages:
    """GAE over the tokens of each response, whitened.

    Each response is an episode by itself, whose reward is the return of the whole trajectory minus the penalty of its
    step, at the last token.
    """
    c, mask = columns, response_mask(columns)
    segment = segments.segments_of(c.mask, c.group, c.trajectory)
    score = jax.ops.segment_sum(jnp.where(c.mask, c.reward, 0.0), segment, len(c.mask))[segment] - c.penalty
    reward = jnp.where(last_tokens(mask), score[:, None], 0.0)
    return of_tokens(token_gae(reward, c.token_value, mask, gamma=gamma, lam=lam), mask)


def of_tokens(found: Gae, mask: Array) -> Advantages:
    """Whitened advantages of tokens; that of a step is their mean. The episode part is zero.

    Args:
      found: [N, R] each.
      mask: [N, R] bool, the tokens.
    """
    tokens = whiten(found.advantage, mask)
    step = jnp.sum(tokens, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1)
    return Advantages(total=step, episode=jnp.zeros_like(step), step=step, tokens=tokens, target=found.target)
