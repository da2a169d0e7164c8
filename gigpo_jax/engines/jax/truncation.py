"""Cuts unlikely tokens: top-k, then top-p.

Nothing is sorted: both find their threshold by bisection over the bits of a float, 32 passes over
the logits however large the vocabulary, and only when some row asks for it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def cut_tokens(
    scaled: jax.Array, sampled: jax.Array, top_p: jax.Array, top_k: jax.Array
) -> jax.Array:
    """Returns `scaled` with -inf for the tokens that are cut.

    Args:
      scaled: [S, V] f32, at most 0.
      sampled: [S] bool; other rows keep all tokens.
      top_p: [S] f32 in (0, 1].
      top_k: [S] i32; 0 or less keeps all.
    """
    # The branches return thresholds, not logits: their results need no arrays of [S, V].
    threshold_k = _threshold_where(sampled & (top_k > 0), lambda: _top_k_threshold(scaled, top_k))
    threshold_p = _threshold_where(
        sampled & (top_p < 1), lambda: _top_p_threshold(scaled, top_p, threshold_k)
    )
    # Ties with the threshold are kept. A threshold of 0 keeps everything, -inf included.
    threshold = jnp.maximum(threshold_k, threshold_p)
    return jnp.where(_ordered_bits(scaled) >= threshold[:, None], scaled, -jnp.inf)


def _threshold_where(rows: jax.Array, threshold: Callable[[], jax.Array]) -> jax.Array:
    """Computes the threshold [S] u32 of `rows` [S] bool, with 0 for the others, which keeps all."""
    zeros = jnp.zeros(rows.shape, jnp.uint32)
    return jax.lax.cond(jnp.any(rows), lambda: jnp.where(rows, threshold(), zeros), lambda: zeros)


def _top_k_threshold(scaled: jax.Array, top_k: jax.Array) -> jax.Array:
    """Finds the k-th largest value of each row of `scaled` [S, V], as ordered bits."""
    bits = _ordered_bits(scaled)
    count = jnp.minimum(top_k, scaled.shape[-1])

    def keeps_enough(threshold: jax.Array) -> jax.Array:
        return jnp.sum(bits >= threshold[:, None], axis=-1) >= count

    return _largest_where(keeps_enough, scaled.shape[0])


def _top_p_threshold(scaled: jax.Array, top_p: jax.Array, threshold_k: jax.Array) -> jax.Array:
    """Finds the smallest value of each row's nucleus, as ordered bits.

    The nucleus is the smallest set of likeliest tokens that holds the share `top_p` [S] of the
    probability of the tokens from `threshold_k` [S] on.
    """
    bits = _ordered_bits(scaled)
    # The nucleus is a share of what top-k has kept.
    weights = jnp.where(bits >= threshold_k[:, None], jnp.exp(scaled), 0.0)
    share = top_p * jnp.sum(weights, axis=-1)

    def keeps_enough(threshold: jax.Array) -> jax.Array:
        # Rounding cannot break the bisection: in a fixed order of additions a sum does not grow
        # when a term becomes 0.
        return jnp.sum(jnp.where(bits >= threshold[:, None], weights, 0.0), axis=-1) >= share

    return _largest_where(keeps_enough, scaled.shape[0])


def _ordered_bits(scaled: jax.Array) -> jax.Array:
    """Maps f32 to u32 of the same order."""
    bits = jax.lax.bitcast_convert_type(scaled + 0.0, jnp.uint32)  # + 0.0 makes -0.0 equal to 0.0
    # Positive floats are ordered as their bits. Bits of negative floats are in reverse order, so
    # they are inverted, and positive ones get the highest bit to lie above them.
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _largest_where(condition: Callable[[jax.Array], jax.Array], rows: int) -> jax.Array:
    """Finds the largest u32 [S] that meets a condition, bit by bit.

    The condition must be true up to some number and false beyond it.
    """

    def set_next_bit(index: jax.Array, number: jax.Array) -> jax.Array:
        # From the highest bit down: a bit stays set if the condition still holds with it.
        higher = number | (jnp.uint32(1) << (31 - index).astype(jnp.uint32))
        return jnp.where(condition(higher), higher, number)

    return jax.lax.fori_loop(0, 32, set_next_bit, jnp.zeros((rows,), jnp.uint32))
