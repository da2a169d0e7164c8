"""Ratios that responses share, and corrections for engines that differ.

With l_t = log-probability now - old log-probability of the L tokens of a response:

    token            exp(l_t)                                  PPO, arXiv 1707.06347
    sequence         exp(mean l), with the gradient of l_t     GSPO-token, arXiv 2507.18071, (14)
    product          exp(sum l)                                Turn-PPO, arXiv 2512.17008
    hoelder          (mean of exp(p l))^(1/p); 0: exp(mean l)  HölderPO, arXiv 2605.12058
    hoelder_tokens   the same of ratios that were clipped      p = 0: GMPO, arXiv 2507.20673

The last three pass the gradient to all tokens of the response. Each is a value per token, so the
loss means of `LossSettings.mean` apply to all; with "responses", a response counts once, as in the
papers.

The corrections, with r = exp(proximal - behaviour), the ratio of learner and engine, and c the cap:

    truncated           weigh a token by min(r, c)
    truncated_sequence  weigh a response by min(product of r, c)
    masked_sequence     leave a response out unless its product of r is in [1/c, c]
    masked_mean         leave a response out unless its geometric mean of r is in [1/c, c]

In verl's documentation of rollout correction: token_is, seq_is, sequence rejection, geo_rs without
the veto.

Shapes: B rows, C response tokens in a row; a leading M axis where it says so. Log-ratios are in
nats.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from gigpo_jax.rl.ratios import Correction, Ratio, limit_log_ratio
from gigpo_jax.rl.types import StepBatch

_NO_POWER = 1e-6  # |p| below it counts as 0


def count_responses(weight: Array, batch: StepBatch) -> Array:
    """Counts the responses of which a correction has left tokens, with `losses.kept_weight`."""
    # Each remaining response sums to 1: its tokens have 1 / length each.
    member = (weight > 0.0).astype(jnp.float32)
    length = jnp.maximum(response_sums(member, response_numbers(batch)), 1.0)
    return jnp.sum(member / length)


def join_log_ratios(
    log_ratio: Array,
    advantage: Array,
    weight: Array,
    batch: StepBatch,
    *,
    ratio: Ratio,
    power: ArrayLike,
    clip_low: ArrayLike,
    clip_high: ArrayLike,
) -> tuple[Array, Array | None]:
    """Replaces the log-ratios of tokens by those of a ratio other than "token".

    Args:
      log_ratio: [B, C] f32.
      advantage: [B, C] f32.
      weight: [B, C] f32, 0 for padding.
      batch: Microbatch without the M axis.
      ratio: Ratio that is clipped.
      power: [] f32, p of the Hölder mean.
      clip_low, clip_high: Clips of the loss.

    Returns:
      [B, C] f32; [B, C] bool, tokens that were clipped, with "hoelder_tokens" alone.
    """
    response = response_numbers(batch)
    if ratio == "sequence":
        return sequence_log_ratio(log_ratio, weight, response), None
    # Each token counts once in a mean over a response, also where episodes weigh
    # tokens differently.
    member = (weight > 0.0).astype(jnp.float32)
    if ratio == "product":
        return product_log_ratio(log_ratio, member, response), None
    # Stages: clip the tokens (hoelder_tokens alone), join them over the response, clip the result.
    # A mean of clipped ratios is within the clips on the side that the advantage pushes to, so the
    # clip in `surrogate_cost` takes no further gradient.
    clipped = None
    if ratio == "hoelder_tokens":
        log_ratio, clipped = clip_log_ratio(
            log_ratio, advantage, clip_low=clip_low, clip_high=clip_high
        )
    return hoelder_log_ratio(log_ratio, member, response, power), clipped


def sequence_log_ratio(log_ratio: Array, weight: Array, response: Array) -> Array:
    """Replaces a token's ratio by the ratio of its response (GSPO-token).

    Source: arXiv 2507.18071, eq. 13 and 14. The value is the mean log-ratio of the response; the
    gradient is the gradient of the token's own log-probability. Where the tokens of a response
    share an advantage and the loss is a mean over responses, this is GSPO (eq. 5 and 7).

    Args:
      log_ratio: [B, C] f32.
      weight: [B, C] f32, 0 for padding.
      response: [B, C] i32, response of each token (`response_numbers`).

    Returns:
      [B, C] f32.
    """
    # Only the value is that of the response. A gradient through the mean would reach all tokens of
    # it, which is GSPO's eq. 5; eq. 13 leaves each token its own.
    fixed = lax.stop_gradient(log_ratio)
    total = response_sums(weight, response)
    # The inner `where` is a safe divisor: a response number without tokens has a sum of 0.
    mean = response_sums(fixed * weight, response) / jnp.where(total > 0.0, total, 1.0)
    # log_ratio - fixed is 0, with the gradient of the token's own log-probability.
    return mean + log_ratio - fixed


def product_log_ratio(log_ratio: Array, member: Array, response: Array) -> Array:
    """Sums the log-ratios of a response's tokens (Turn-PPO, arXiv 2512.17008).

    Args:
      log_ratio: [B, C] f32.
      member: [B, C] f32, 1 for response tokens, 0 for padding.
      response: [B, C] i32, response of each token (`response_numbers`).

    Returns:
      [B, C] f32, equal for the tokens of a response.
    """
    return response_sums(log_ratio * member, response)


def hoelder_log_ratio(log_ratio: Array, member: Array, response: Array, power: ArrayLike) -> Array:
    """The log of the Hölder mean of token ratios (HölderPO).

    The mean is over the tokens of a response. Source: arXiv 2605.12058. The gradient to the
    log-ratio of token t is softmax_t(p l): p > 0 follows tokens that became likelier, p < 0 those
    that became less likely.

    Args:
      log_ratio: [B, C] f32.
      member: [B, C] f32, 1 for response tokens, 0 for padding.
      response: [B, C] i32, response of each token (`response_numbers`).
      power: [] f32, p in [-2, 2].

    Returns:
      [B, C] f32, equal for the tokens of a response.
    """
    # |l - mean| is then at most 40, and |p| at most 2: exp(80) is still below the largest float32.
    log_ratio = limit_log_ratio(log_ratio)
    power = jnp.asarray(power, jnp.float32)
    count = jnp.maximum(response_sums(member, response), 1.0)
    mean = response_sums(log_ratio * member, response) / count
    # Around the mean, log(mean exp(p l)) / p is finite; expm1 and log1p keep its digits for a small
    # p.
    # The centre cancels in the value, so the gradient needs none of it.
    centre = lax.stop_gradient(mean)
    is_zero = jnp.abs(power) < _NO_POWER
    # Where twice: with p = 0 the other branch would divide by 0, and its NaN gradient would reach
    # this one through the outer where.
    divisor = jnp.where(is_zero, 1.0, power)
    excess = response_sums(jnp.expm1(divisor * (log_ratio - centre)) * member, response) / count
    return jnp.where(is_zero, mean, centre + jnp.log1p(excess) / divisor)


def clip_log_ratio(
    log_ratio: Array, advantage: Array, *, clip_low: ArrayLike, clip_high: ArrayLike
) -> tuple[Array, Array]:
    """Clips the ratio of each token on the side to which its advantage pushes it (GMPO).

    Source: arXiv 2507.20673.

    Args:
      log_ratio: [B, C] f32.
      advantage: [B, C] f32.
      clip_low: Limit for negative advantages: the ratio is at least 1 - clip_low.
      clip_high: Limit for positive advantages: the ratio is at most 1 + clip_high.

    Returns:
      [B, C] f32, clipped log-ratio; [B, C] bool, True for clipped tokens.
    """
    # clip_low may be 1, for no lower limit: log(0) is -inf.
    low = jnp.log(jnp.maximum(1.0 - clip_low, 1e-9))
    high = jnp.log1p(clip_high)
    # One side only: a token that moved against its advantage keeps the gradient
    # that brings it back.
    is_outside = jnp.where(advantage < 0.0, log_ratio < low, log_ratio > high)
    # The clip is a constant for the tokens outside, so they have no gradient.
    return jnp.where(is_outside, jnp.clip(log_ratio, low, high), log_ratio), is_outside


def importance_weight(
    difference: Array, batch: StepBatch, correction: Correction, cap: float
) -> Array:
    """Weighs tokens by the truncated ratio of learner and engine.

    Args:
      difference: [B, C] f32, proximal less behaviour log-probability in nats.
      batch: Microbatch without the M axis.
      correction: "truncated" or "truncated_sequence".
      cap: Largest weight.

    Returns:
      [B, C] f32.
    """
    if correction == "truncated_sequence":
        member = (batch.weight > 0.0).astype(jnp.float32)
        difference = product_log_ratio(difference, member, response_numbers(batch))
    # Truncated, not clipped from below: tokens that the engine made too likely need
    # the small weight.
    return jnp.minimum(jnp.exp(limit_log_ratio(difference)), cap)


def within_cap(batch: StepBatch, correction: Correction, cap: float) -> Array:
    """Returns [..., B, C] bool, False in responses that a correction of `MASKS` leaves out."""
    member = (batch.weight > 0.0).astype(jnp.float32)
    # Values of padding may be NaN or infinite, and padding has the number of a real response.
    difference = jnp.where(member > 0.0, batch.proximal - batch.behaviour, 0.0)
    response = response_numbers(batch)
    total = response_sums(difference, response)
    if correction == "masked_mean":
        total = total / jnp.maximum(response_sums(member, response), 1.0)
    # Both limits, 1 / cap and cap, at once. In logs, because a product of many ratios overflows.
    return jnp.abs(total) <= np.log(cap)


def response_numbers(batch: StepBatch) -> Array:
    """Numbers each token by its response in the row, [..., B, C] i32 below C; 0 in padding."""
    # Padding has the number of the first response. So sums over responses need values that are 0 in
    # padding.
    return jnp.maximum(batch.responses - 1, 0)


def response_sums(values: Array, response: Array) -> Array:
    """Gives each token the sum of the values of its response; values and sums are [..., B, C]."""

    # C numbers are enough: every response of a row has at least one of its C tokens.
    def row(values: Array, number: Array) -> Array:
        return jax.ops.segment_sum(values, number, number.shape[0])[number]

    for _ in range(values.ndim - 1):
        row = jax.vmap(row)
    return row(values, response)
