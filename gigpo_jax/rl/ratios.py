"""From the log-ratios of tokens to the ratio that is clipped, and the correction for engines that differ.

With l_t = log-probability now - old log-probability of the L tokens of a response:

    token            exp(l_t)                                        PPO, arXiv 1707.06347
    sequence         exp(mean l), with the gradient of l_t alone     GSPO-token, arXiv 2507.18071, eq. 13 and 14
    product          exp(sum l)                                      Turn-PPO, arXiv 2512.17008
    hoelder          (mean of exp(p l))^(1/p); p = 0: exp(mean l)    HölderPO, arXiv 2605.12058
    hoelder_tokens   the same of ratios that were clipped each       p = 0: GMPO, arXiv 2507.20673

The last three pass the gradient to all tokens of the response. Each is a value per token, so the loss means of
`LossSettings.mean` apply to all; with "responses", a response counts once, as in the papers.

Shapes: B rows, C response tokens in a row; a leading M axis where it says so. Log-ratios are in nats.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from gigpo_jax.rl.types import StepBatch

Ratio = Literal["token", "sequence", "product", "hoelder", "hoelder_tokens"]
# Of a token or a response: r = exp(proximal - behaviour), the ratio of learner and engine, c = the cap.
#   truncated           weigh a token by min(r, c)
#   truncated_sequence  weigh a response by min(product of r, c)
#   masked_sequence     leave a response out unless its product of r is in [1/c, c]
#   masked_mean         leave a response out unless its geometric mean of r is in [1/c, c]
# In verl's documentation of rollout correction: token_is, seq_is, sequence rejection, geo_rs without the veto.
Correction = Literal["none", "truncated", "truncated_sequence", "masked_sequence", "masked_mean"]
MASKS = ("masked_sequence", "masked_mean")
LOG_RATIO_LIMIT = 20.0  # exp(20) is far beyond any clip and far from overflow
_NO_POWER = 1e-6  # |p| below it counts as 0


def limited(log_ratio: Array) -> Array:
    """Log-ratios whose exponential is finite."""
    return jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def sequence_log_ratio(log_ratio: Array, weight: Array, response: Array) -> Array:
    """Replaces the ratio of a token by that of its whole response (GSPO-token, arXiv 2507.18071, eq. 13 and 14).

    The value is the mean log-ratio of the response; the gradient is that of the token's own log-probability. Where the
    tokens of a response share an advantage and the loss is a mean over responses, this is GSPO (eq. 5 and 7).

    Args:
      log_ratio: [B, C] f32.
      weight: [B, C] f32, 0 for padding.
      response: [B, C] i32, as from `response_numbers`.

    Returns:
      [B, C] f32.
    """
    fixed = lax.stop_gradient(log_ratio)
    whole = response_sums(weight, response)
    mean = response_sums(fixed * weight, response) / jnp.where(whole > 0.0, whole, 1.0)
    return mean + log_ratio - fixed


def product_log_ratio(log_ratio: Array, member: Array, response: Array) -> Array:
    """The log-ratio of whole responses, the sum over their tokens (Turn-PPO, arXiv 2512.17008).

    Args:
      log_ratio: [B, C] f32.
      member: [B, C] f32, 1 for response tokens, 0 for padding.
      response: [B, C] i32, as from `response_numbers`.

    Returns:
      [B, C] f32, equal for the tokens of a response.
    """
    return response_sums(log_ratio * member, response)


def hoelder_log_ratio(log_ratio: Array, member: Array, response: Array, power: ArrayLike) -> Array:
    """The logarithm of the Hölder mean of the token ratios of a response (HölderPO, arXiv 2605.12058).

    The gradient to the log-ratio of token t is softmax_t(p l): p > 0 follows tokens that became likelier, p < 0 those
    that became less likely.

    Args:
      log_ratio, member, response: see `product_log_ratio`.
      power: [] f32, p in [-2, 2].

    Returns:
      [B, C] f32, equal for the tokens of a response.
    """
    log_ratio, power = limited(log_ratio), jnp.asarray(power, jnp.float32)
    count = jnp.maximum(response_sums(member, response), 1.0)
    mean = response_sums(log_ratio * member, response) / count
    # Around the mean, log(mean exp(p l)) / p is finite; expm1 and log1p keep its digits for a small p.
    centre, zero = lax.stop_gradient(mean), jnp.abs(power) < _NO_POWER
    divisor = jnp.where(zero, 1.0, power)
    excess = response_sums(jnp.expm1(divisor * (log_ratio - centre)) * member, response) / count
    return jnp.where(zero, mean, centre + jnp.log1p(excess) / divisor)


def clip_log_ratio(
    log_ratio: Array, advantage: Array, *, clip_low: ArrayLike, clip_high: ArrayLike
) -> tuple[Array, Array]:
    """Clips the ratio of each token on the side where its advantage would push it further (GMPO, arXiv 2507.20673).

    Args:
      log_ratio: [B, C] f32.
      advantage: [B, C] f32.
      clip_low: a ratio with a negative advantage is at least 1 - clip_low.
      clip_high: a ratio with a positive advantage is at most 1 + clip_high.

    Returns:
      [B, C] f32 the clipped log-ratio; [B, C] bool where it was clipped.
    """
    low, high = jnp.log(jnp.maximum(1.0 - clip_low, 1e-9)), jnp.log1p(clip_high)
    over = jnp.where(advantage < 0.0, log_ratio < low, log_ratio > high)
    return jnp.where(over, jnp.clip(log_ratio, low, high), log_ratio), over


def importance_weight(difference: Array, batch: StepBatch, correction: Correction, cap: float) -> Array:
    """[B, C] f32, what the surrogate of each token is multiplied by; `difference` [B, C] is proximal - behaviour."""
    if correction == "truncated_sequence":
        member = (batch.weight > 0.0).astype(jnp.float32)
        difference = product_log_ratio(difference, member, response_numbers(batch))
    return jnp.minimum(jnp.exp(limited(difference)), cap)


def within_cap(batch: StepBatch, correction: Correction, cap: float) -> Array:
    """[..., B, C] bool, False for the tokens of responses that a correction of `MASKS` leaves out."""
    member = (batch.weight > 0.0).astype(jnp.float32)
    difference = jnp.where(member > 0.0, batch.proximal - batch.behaviour, 0.0)
    response = response_numbers(batch)
    total = response_sums(difference, response)
    if correction == "masked_mean":
        total = total / jnp.maximum(response_sums(member, response), 1.0)
    return jnp.abs(total) <= np.log(cap)


def response_numbers(batch: StepBatch) -> Array:
    """[..., B, C] i32 in [0, C), the response of its row that each response token belongs to; 0 in padding."""
    return jnp.maximum(jnp.take_along_axis(batch.segment_ids, batch.response_index, axis=-1) - 1, 0)


def response_sums(values: Array, response: Array) -> Array:
    """[..., B, C], for each token the sum of the values [..., B, C] of its response."""

    def row(values: Array, number: Array) -> Array:
        return jax.ops.segment_sum(values, number, number.shape[0])[number]

    for _ in range(values.ndim - 1):
        row = jax.vmap(row)
    return row(values, response)
