"""Names of ratios and corrections, whose formulas stand in `rl.response_ratios`."""

from typing import Literal

import jax.numpy as jnp
from jax import Array

Ratio = Literal["token", "sequence", "product", "hoelder", "hoelder_tokens"]
Correction = Literal["none", "truncated", "truncated_sequence", "masked_sequence", "masked_mean"]
MASKS = ("masked_sequence", "masked_mean")
LOG_RATIO_LIMIT = 20.0  # exp(20) is far beyond any clip and far from overflow


def limit_log_ratio(log_ratio: Array) -> Array:
    """Clips log-ratios so that their exponential is finite."""
    return jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
