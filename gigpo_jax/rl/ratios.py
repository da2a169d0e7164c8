"""From log-ratios of tokens to the clipped ratio, and corrections for engines that differ.

With l_t = log-probability now - old log-probability of the L tokens of a response:

    token            exp(l_t)                                  PPO, arXiv 1707.06347
    sequence         exp(mean l), with the gradient of l_t     GSPO-token, arXiv 2507.18071, (14)
    product          exp(sum l)                                Turn-PPO, arXiv 2512.17008
    hoelder          (mean of exp(p l))^(1/p); 0: exp(mean l)  HölderPO, arXiv 2605.12058
    hoelder_tokens   the same of ratios that were clipped      p = 0: GMPO, arXiv 2507.20673

The last three pass the gradient to all tokens of the response. Each is a value per token, so the
loss means of `LossSettings.mean` apply to all; with "responses", a response counts once, as in the
papers.

All but the first are computed by `rl.response_ratios`, as the corrections are.
"""

from typing import Literal

import jax.numpy as jnp
from jax import Array

Ratio = Literal["token", "sequence", "product", "hoelder", "hoelder_tokens"]
# Of a token or a response: r = exp(proximal - behaviour), the ratio of learner and engine, c = the
# cap.
#   truncated           weigh a token by min(r, c)
#   truncated_sequence  weigh a response by min(product of r, c)
#   masked_sequence     leave a response out unless its product of r is in [1/c, c]
#   masked_mean         leave a response out unless its geometric mean of r is in [1/c, c]
# In verl's documentation of rollout correction: token_is, seq_is, sequence rejection, geo_rs
# without the veto.
Correction = Literal["none", "truncated", "truncated_sequence", "masked_sequence", "masked_mean"]
MASKS = ("masked_sequence", "masked_mean")
LOG_RATIO_LIMIT = 20.0  # exp(20) is far beyond any clip and far from overflow


def limit_log_ratio(log_ratio: Array) -> Array:
    """Clips log-ratios so that their exponential is finite."""
    return jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
