"""GAE over steps and then over the tokens of each response (RAGEN, arXiv 2504.20073, and VAGEN)."""

from typing import Any

from gigpo_jax.rl.advantages import Advantages
from gigpo_jax.rl.gae import bilevel_gae, response_mask
from gigpo_jax.rl.methods.ppo import of_tokens
from gigpo_jax.rl.types import StepColumns


def bilevel(columns: StepColumns, *, gamma: float, lam: float, token_gamma: float, **_: Any) -> Advantages:
    """`bilevel_gae`, whitened."""
    c, mask = columns, response_mask(columns)
    how = {"gamma": gamma, "lam": lam, "token_gamma": token_gamma}
    where = {"trajectory": c.trajectory, "step": c.step, "group": c.group, "mask": c.mask}
    return of_tokens(bilevel_gae(c.reward - c.penalty, c.token_value, mask, **where, **how), mask)
