"""Names of ratios and of corrections; `rl.response_ratios` has their formulas."""

from typing import Literal

import jax.numpy as jnp
from jax import Array

Ratio = Literal["token", "sequence", "product", "hoelder", "hoelder_tokens"]
Correction = Literal["none", "truncated", "truncated_sequence", "masked_sequence", "masked_mean"]
# Ratios of whole responses. Their clip is as narrow as the rounding of a bfloat16 engine, or their
# sum over tokens as noisy, so old log-probabilities of such an engine would clip at random.
SENSITIVE = ("sequence", "product")
MASKS = ("masked_sequence", "masked_mean")
LOG_RATIO_LIMIT = 20.0  # exp(20) is far beyond any clip and far from overflow


def limit_log_ratio(log_ratio: Array) -> Array:
    """Clips log-ratios so that their exponential is finite."""
    return jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
