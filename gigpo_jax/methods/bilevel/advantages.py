"""GAE over steps and then over the tokens of each response (RAGEN, arXiv 2504.20073, and VAGEN)."""

from typing import Any

from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.gae import bilevel_gae, response_mask
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
