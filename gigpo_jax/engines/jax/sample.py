"""Draws the next token of every row, with its log-probability and the entropy.

Every row has settings and a random key of its own, and what it draws depends on nothing else.
Nothing is sorted: top-k and top-p find their threshold by bisection over the bits of a float, 32
passes over the logits however large the vocabulary, and only when some row asks for it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

# Tokens summed together before the cumulative sum: the sum then runs over V / BLOCK numbers.
BLOCK = 128


def token_keys(keys: jax.Array, counts: jax.Array) -> jax.Array:
    """Derives the Threefry key [S] of each row's next token.

    It folds the token's index in its response, [S] i32, into the request's key, [S, 2] u32.
    """
    # The implementation is named, because a flag of JAX can change the default: keys of requests
    # have two words, and equal keys must give equal tokens everywhere.
    request_keys = jax.random.wrap_key_data(keys, impl="threefry2x32")
    return jax.vmap(jax.random.fold_in)(request_keys, counts.astype(jnp.uint32))


def sample_tokens(
    logits: jax.Array, keys: jax.Array, temperature: jax.Array, top_p: jax.Array, top_k: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws one token for each row.

    Args:
      logits: [S, V] f32.
      keys: [S], from `token_keys`.
      temperature: [S] f32; 0 takes the likeliest token and does not change the logits.
      top_p: [S] f32 in (0, 1].
      top_k: [S] i32; 0 or less keeps all.

    Returns:
      tokens [S] i32, [S] f32 their log-probabilities in the distribution they were drawn from, and
      [S] f32 its entropy, both in nats; for temperature 0 of the softmax of the logits.
    """
    scaled, log_sum = process_logits(logits, temperature, top_p, top_k)
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
    drawn_tokens = _draw_tokens(scaled, uniform)
    tokens = jnp.where(temperature > 0, drawn_tokens, _likeliest_tokens(scaled)).astype(jnp.int32)
    token_scores = jnp.take_along_axis(scaled, tokens[:, None], axis=-1)[:, 0]
    probability = jnp.exp(scaled - log_sum[:, None])
    # Tokens that are cut have -inf. A program that does not return the entropy does not compute it.
    mean_score = jnp.sum(jnp.where(probability > 0, probability * scaled, 0.0), axis=-1)
    return tokens, token_scores - log_sum, log_sum - mean_score


def process_logits(
    logits: jax.Array, temperature: jax.Array, top_p: jax.Array, top_k: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Applies temperature, then top-k, then top-p; rows of temperature 0 keep their logits.

    Arguments are as for `sample_tokens`.

    Returns:
      scaled [S, V] f32: 0 for the likeliest token, negative for the others, -inf for tokens that
      are cut; and [S] f32, the logarithm of the sum of their exponentials. A token's
      log-probability is their difference.
    """
    sampled = temperature > 0
    # float32 before the division. Rows of temperature 0 are divided by 1: they keep their logits
    # and stay finite.
    scaled = logits.astype(jnp.float32) / jnp.where(sampled, temperature, 1.0)[:, None]
    # No exponential exceeds 1, and their sum is at least 1: neither overflow nor log(0).
    scaled = scaled - jnp.max(scaled, axis=-1, keepdims=True)
    # The branches return thresholds, not logits: their results need no arrays of [S, V].
    threshold_k = _threshold_where(sampled & (top_k > 0), lambda: _top_k_threshold(scaled, top_k))
    threshold_p = _threshold_where(
        sampled & (top_p < 1), lambda: _top_p_threshold(scaled, top_p, threshold_k)
    )
    # Ties with the threshold are kept. A threshold of 0 keeps everything, -inf included.
    threshold = jnp.maximum(threshold_k, threshold_p)
    scaled = jnp.where(_ordered_bits(scaled) >= threshold[:, None], scaled, -jnp.inf)
    return scaled, jnp.log(jnp.sum(jnp.exp(scaled), axis=-1))


def _draw_tokens(scaled: jax.Array, uniform: jax.Array) -> jax.Array:
    """Draws a token [S] i32 by inverting the cumulative distribution of blocks, then in a block.

    `scaled` [S, V] is from `process_logits`, `uniform` [S, 2] f32 in [0, 1).
    """
    # [S, N, BLOCK]. Padding has no weight and is never drawn; the sum need not be 1, as only shares
    # of it are compared.
    weights = _split_blocks(jnp.exp(scaled), 0.0)
    # The Gumbel trick (`jax.random.categorical`) needs V numbers a row: for V = 151,936 a CPU takes
    # 24 times as long. Each level has a number of its own: one float32 has too few bits, and
    # tokens of a probability far below 2^-24 would be drawn too often or never.
    block = _invert_cumulative(jnp.sum(weights, axis=-1), uniform[:, 0])
    return block * BLOCK + _invert_cumulative(_take_block(weights, block), uniform[:, 1])


def _likeliest_tokens(scaled: jax.Array) -> jax.Array:
    """Finds the first of the likeliest tokens [S] i32."""
    # In blocks, because XLA's argmax of all V takes 30 times as long on a CPU.
    scores = _split_blocks(scaled, -jnp.inf)
    block = jnp.argmax(jnp.max(scores, axis=-1), axis=-1)
    return block * BLOCK + jnp.argmax(_take_block(scores, block), axis=-1)


def _split_blocks(x: jax.Array, filler: float) -> jax.Array:
    """Reshapes [S, V] to [S, N, BLOCK]."""
    rows, vocabulary = x.shape
    padded = jnp.pad(x, ((0, 0), (0, -vocabulary % BLOCK)), constant_values=filler)
    return padded.reshape(rows, -1, BLOCK)


def _take_block(blocks: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.take_along_axis(blocks, index[:, None, None], axis=1)[:, 0]


def _invert_cumulative(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """Finds the first index [S] whose cumulative weight [S, N] exceeds a share [S] of the total."""
    # An index of weight 0 must never be returned. The float32 sum is computed in blocks and is not
    # monotone: at such an index it can be larger than at the index before it.
    cumulative = jnp.where(weights > 0, jnp.cumsum(weights, axis=-1), 0.0)
    total = jnp.max(cumulative, axis=-1)
    # Rounding may lift the product to the total itself, which no entry exceeds.
    target = jnp.minimum(uniform * total, jnp.nextafter(total, jnp.zeros_like(total)))
    return jnp.argmax(cumulative > target[:, None], axis=-1)


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
