"""Draws the next token of every row, and says how likely it was.

Every row has settings and a random key of its own, and what it draws depends on nothing else. Nothing is sorted: top-k
and top-p find their threshold by bisection over the bits of a float, 32 passes over the logits however large the
vocabulary, and only when some row asks for it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

BLOCK = 128  # tokens summed together before the cumulative sum: the sum then runs over V / BLOCK numbers


def token_keys(keys: jax.Array, counts: jax.Array) -> jax.Array:
    """The Threefry key [S] of each row's next token: the request's key [S, 2] u32 with its index [S] i32 folded in."""
    return jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(keys, impl="threefry2x32"), counts.astype(jnp.uint32))


def sample(
    logits: jax.Array, keys: jax.Array, temperature: jax.Array, top_p: jax.Array, top_k: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draws one token for each row.

    Args:
      logits: [S, V] f32.
      keys: [S] from `token_keys`.
      temperature: [S] f32; 0 takes the likeliest token, and leaves the logits as they are.
      top_p: [S] f32 in (0, 1].
      top_k: [S] i32; 0 or less keeps all.

    Returns:
      tokens [S] i32, and [S] f32 their log-probabilities (nats) in the distribution they were drawn from; for
      temperature 0 in the softmax of the logits.
    """
    scaled, log_sum = processed(logits, temperature, top_p, top_k)
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
    tokens = jnp.where(temperature > 0, _draw(scaled, uniform), _likeliest(scaled)).astype(jnp.int32)
    chosen = jnp.take_along_axis(scaled, tokens[:, None], axis=-1)[:, 0]
    return tokens, chosen - log_sum


def processed(
    logits: jax.Array, temperature: jax.Array, top_p: jax.Array, top_k: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Applies temperature, then top-k, then top-p.

    Args:
      logits: [S, V] f32.
      temperature: [S] f32; rows with 0 keep their logits, and top-p and top-k have no effect on them.
      top_p: [S] f32.
      top_k: [S] i32.

    Returns:
      scaled [S, V] f32, at most 0 and 0 for the likeliest, -inf for what is not kept; and [S] f32 the logarithm of
      the sum of their exponentials, so that log-probabilities are the difference.
    """
    sampled = temperature > 0
    scaled = logits.astype(jnp.float32) / jnp.where(sampled, temperature, 1.0)[:, None]
    scaled = scaled - jnp.max(scaled, axis=-1, keepdims=True)
    # The branches return thresholds, not logits: their results need no arrays of [S, V].
    lowest = _lowest(sampled & (top_k > 0), lambda: _top_k_threshold(scaled, top_k))
    lowest_p = _lowest(sampled & (top_p < 1), lambda: _top_p_threshold(scaled, top_p, lowest))
    scaled = jnp.where(_ordered_bits(scaled) >= jnp.maximum(lowest, lowest_p)[:, None], scaled, -jnp.inf)
    return scaled, jnp.log(jnp.sum(jnp.exp(scaled), axis=-1))


def _draw(scaled: jax.Array, uniform: jax.Array) -> jax.Array:
    """Draws a token [S] i32 by inverting the cumulative distribution: of blocks of tokens, then inside the block.

    Two uniform numbers a row: with V = 151,936 the Gumbel trick (`jax.random.categorical`), which needs V, takes 24
    times as long on a CPU. Each level has its own number, so that a token of probability far below 2^-24 is drawn as
    often as it should be.

    Args:
      scaled: [S, V] f32 from `processed`.
      uniform: [S, 2] f32 in [0, 1).
    """
    weights = _blocks(jnp.exp(scaled), 0.0)
    block = _invert(jnp.sum(weights, axis=-1), uniform[:, 0])
    return block * BLOCK + _invert(_inside(weights, block), uniform[:, 1])


def _likeliest(scaled: jax.Array) -> jax.Array:
    """The first of the likeliest tokens [S] i32: XLA's argmax of all V takes 30 times as long on a CPU."""
    scores = _blocks(scaled, -jnp.inf)
    block = jnp.argmax(jnp.max(scores, axis=-1), axis=-1)
    return block * BLOCK + jnp.argmax(_inside(scores, block), axis=-1)


def _blocks(x: jax.Array, filler: float) -> jax.Array:
    """[S, V] -> [S, N, BLOCK]."""
    rows, vocabulary = x.shape
    return jnp.pad(x, ((0, 0), (0, -vocabulary % BLOCK)), constant_values=filler).reshape(rows, -1, BLOCK)


def _inside(blocks: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.take_along_axis(blocks, index[:, None, None], axis=1)[:, 0]


def _invert(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """For weights [S, N] >= 0 and uniform [S] in [0, 1): the first index whose cumulative weight exceeds its share.

    An index of weight 0 is never returned. The float32 sum is not monotone: it is computed in blocks, and at such an
    index it can be larger than before it.
    """
    cumulative = jnp.where(weights > 0, jnp.cumsum(weights, axis=-1), 0.0)
    total = jnp.max(cumulative, axis=-1)
    # Rounding may lift the product to the total itself, which no entry exceeds.
    target = jnp.minimum(uniform * total, jnp.nextafter(total, jnp.zeros_like(total)))
    return jnp.argmax(cumulative > target[:, None], axis=-1)


def _lowest(rows: jax.Array, threshold: Callable[[], jax.Array]) -> jax.Array:
    """The threshold [S] u32 of the `rows` [S] bool that ask for one, and 0, which keeps all, of the others."""
    nothing = jnp.zeros(rows.shape, jnp.uint32)
    return jax.lax.cond(jnp.any(rows), lambda: jnp.where(rows, threshold(), nothing), lambda: nothing)


def _top_k_threshold(scaled: jax.Array, top_k: jax.Array) -> jax.Array:
    """The k-th largest of each row of scaled [S, V], as ordered bits."""
    bits, enough = _ordered_bits(scaled), jnp.minimum(top_k, scaled.shape[-1])
    return _largest(lambda low: jnp.sum(bits >= low[:, None], axis=-1) >= enough, scaled.shape[0])


def _top_p_threshold(scaled: jax.Array, top_p: jax.Array, lowest: jax.Array) -> jax.Array:
    """The least of the fewest likeliest tokens that hold `top_p` [S] of those from `lowest` [S], as ordered bits."""
    bits = _ordered_bits(scaled)
    weights = jnp.where(bits >= lowest[:, None], jnp.exp(scaled), 0.0)
    share = top_p * jnp.sum(weights, axis=-1)

    def holds(low: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(bits >= low[:, None], weights, 0.0), axis=-1) >= share

    return _largest(holds, scaled.shape[0])


def _ordered_bits(scaled: jax.Array) -> jax.Array:
    """Maps f32 to u32 of the same order."""
    bits = jax.lax.bitcast_convert_type(scaled + 0.0, jnp.uint32)  # + 0.0 makes -0.0 equal to 0.0
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _largest(holds: Callable[[jax.Array], jax.Array], rows: int) -> jax.Array:
    """The largest u32 [S] for which `holds`, which is true up to some number and false beyond; found bit by bit."""

    def body(index: jax.Array, low: jax.Array) -> jax.Array:
        higher = low | (jnp.uint32(1) << (31 - index).astype(jnp.uint32))
        return jnp.where(holds(higher), higher, low)

    return jax.lax.fori_loop(0, 32, body, jnp.zeros((rows,), jnp.uint32))
