"""Draws the next token of every row, with its log-probability and the entropy.

Every row has settings and a random key of its own, and what it draws depends on nothing else.
"""

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
    logits: jax.Array,
    keys: jax.Array,
    temperature: jax.Array,
    cuts: tuple[jax.Array, jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws one token for each row.

    Args:
      logits: [S, V] f32.
      keys: [S], from `token_keys`.
      temperature: [S] f32; 0 takes the likeliest token and does not change the logits.
      cuts: Top-p [S] f32 in (0, 1], and top-k [S] i32, where 0 or less keeps all; None: all rows
        keep all tokens.

    Returns:
      tokens [S] i32, [S] f32 their log-probabilities in the distribution they were drawn from, and
      [S] f32 its entropy, both in nats; for temperature 0 of the softmax of the logits.
    """
    scaled, log_sum = process_logits(logits, temperature, cuts)
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
    drawn_tokens = _draw_tokens(scaled, uniform)
    tokens = jnp.where(temperature > 0, drawn_tokens, _likeliest_tokens(scaled)).astype(jnp.int32)
    token_scores = jnp.take_along_axis(scaled, tokens[:, None], axis=-1)[:, 0]
    probability = jnp.exp(scaled - log_sum[:, None])
    # Tokens that are cut have -inf. A program that does not return the entropy does not compute it.
    mean_score = jnp.sum(jnp.where(probability > 0, probability * scaled, 0.0), axis=-1)
    return tokens, token_scores - log_sum, log_sum - mean_score


def process_logits(
    logits: jax.Array,
    temperature: jax.Array,
    cuts: tuple[jax.Array, jax.Array] | None = None,
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
    if cuts is not None:
        from gigpo_jax.engines.jax.truncation import cut_tokens

        scaled = cut_tokens(scaled, sampled, *cuts)
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
