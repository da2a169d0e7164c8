"""PPO (arXiv 1707.06347) as verl-agent trains its baseline."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from gigpo_jax.rl import segments
from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.algorithm_types import Algorithm
from gigpo_jax.rl.gae import Gae, last_tokens, response_mask, token_gae, whiten
from gigpo_jax.rl.shared_settings import CRITIC, LAM, PER_TOKEN, WHITENED
from gigpo_jax.rl.types import StepColumns


def ppo(columns: StepColumns, *, gamma: float, lam: float, **_: Any) -> Advantages:
    """Whitens GAE over the tokens of each response, which counts as an episode by itself.

    The reward stands at the last token of the response: the return of the whole trajectory minus
    the penalty of the response's step.
    """
    mask = response_mask(columns)
    rows = len(columns.mask)
    # Numbers of trajectories are distinct within a group alone, so the group is a key too.
    segment = segments.number_segments(columns.mask, columns.group, columns.trajectory)
    reward = jnp.where(columns.mask, columns.reward, 0.0)
    # verl-agent trains rows, one a step, and gives each the reward of the whole episode.
    score = jax.ops.segment_sum(reward, segment, rows)[segment] - columns.penalty
    token_reward = jnp.where(last_tokens(mask), score[:, None], 0.0)
    estimates = token_gae(token_reward, columns.token_value, mask, gamma=gamma, lam=lam)
    return whiten_tokens(estimates, mask)


def whiten_tokens(estimates: Gae, mask: Array) -> Advantages:
    """Whitens advantages of tokens; a step gets the mean of its tokens, and the episode part is 0.

    Args:
      estimates: Advantages and targets, [N, R] each.
      mask: [N, R] bool, response tokens of unmasked rows.
    """
    # Over all response tokens of the batch, as in verl: long responses weigh more.
    tokens = whiten(estimates.advantage, mask)
    # The total of a step is for metrics and saved rollouts; the loss reads `tokens`.
    step = jnp.sum(tokens, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1)
    return Advantages(
        total=step,
        episode=jnp.zeros_like(step),
        step=step,
        tokens=tokens,
        target=estimates.target,
    )


# PPO as verl-agent trains the baseline of the GiGPO paper.
METHOD = Algorithm(
    ppo,
    columns=PER_TOKEN,
    signals=(CRITIC,),
    critic_values=1,
    gives_tokens=True,
    settings={"lam": LAM},
    fixed=WHITENED,
    defaults={"gamma": 1.0},
)
