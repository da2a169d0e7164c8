"""Log-probabilities of tokens from hidden states, without an array of [tokens, vocabulary]."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

# Score of padding. Finite: times a probability of 0 it is 0, where -inf would give NaN.
_NEVER = -1e30


class PaddedEmbedding(NamedTuple):
    """An output embedding with rows that stand for no token.

    Attributes:
      matrix: [V, D] float.
      num_tokens: Number of rows that stand for a token; those behind them have probability 0.
    """

    matrix: Array
    num_tokens: int


OutputEmbedding = Array | PaddedEmbedding


def token_logprobs(
    hidden: Array,
    output_embedding: OutputEmbedding,
    targets: Array,
    *,
    chunk: int,
    temperature: ArrayLike = 1.0,
) -> tuple[Array, Array]:
    """Computes log-probability and entropy of tokens chunk by chunk.

    The distribution is softmax(hidden @ output_embedding.T / temperature). The logits of one chunk
    exist at a time, in float32 whatever the dtype of `hidden`, and the backward pass computes them
    again. The embedding is cast to the dtype of `hidden` inside the loop, so its gradient adds up
    over chunks in its own dtype. A chunk takes every (N / chunk)-th token: where N is sharded, each
    device then works on its own tokens in every chunk.

    Args:
      hidden: [N, D] float, after the final norm.
      output_embedding: [V, D] float, or one with padding.
      targets: [N] i32, sampled tokens.
      chunk: Number of tokens whose logits exist at a time, at least 1; memory is chunk * V * 4
        bytes, a few times over. N is padded to a multiple of it.
      temperature: Temperature of the sampler.

    Returns:
      [N] f32 log-probability of the target in nats; [N] f32 entropy of the distribution in nats.
    """
    num_tokens: int | None = None
    if isinstance(output_embedding, PaddedEmbedding):
        output_embedding, num_tokens = output_embedding
    count, width = hidden.shape
    if count == 0:
        return jnp.zeros(0, jnp.float32), jnp.zeros(0, jnp.float32)
    # A chunk longer than the input would only add padding.
    chunk = min(chunk, count)
    pieces = -(-count // chunk)
    pad = pieces * chunk - count
    # [N, D] -> [pieces, chunk, D]. Piece p holds the tokens p, p + pieces, p + 2 pieces, ...
    hidden = jnp.pad(hidden, ((0, pad), (0, 0))).reshape(chunk, pieces, width).swapaxes(0, 1)
    targets = jnp.pad(targets, (0, pad)).reshape(chunk, pieces).swapaxes(0, 1)

    def piece(_: None, inputs: tuple[Array, Array]) -> tuple[None, tuple[Array, Array]]:
        return None, _chunk_logprobs(*inputs, output_embedding, temperature, num_tokens)

    # Without the checkpoint the scan would keep the logits of every chunk for the backward pass.
    # prevent_cse=False: inside a scan XLA cannot merge the second computation with the first, so
    # the barriers against it would only cost time.
    _, outputs = lax.scan(jax.checkpoint(piece, prevent_cse=False), None, (hidden, targets))
    logprob, entropy = (x.swapaxes(0, 1).reshape(-1)[:count] for x in outputs)
    return logprob, entropy


def _chunk_logprobs(
    hidden: Array,
    targets: Array,
    output_embedding: Array,
    temperature: ArrayLike,
    num_tokens: int | None,
) -> tuple[Array, Array]:
    # Accumulated in float32: bfloat16 numbers between 16 and 32 are 1/8 apart, and so
    # would logits be.
    logits = jnp.einsum(
        "nd,vd->nv",
        hidden,
        output_embedding.astype(hidden.dtype),
        preferred_element_type=jnp.float32,
    ) / jnp.float32(temperature)
    if num_tokens is not None:
        is_token = lax.broadcasted_iota(targets.dtype, logits.shape, 1) < num_tokens
        logits = jnp.where(is_token, logits, _NEVER)
    # The largest logit cancels in the result, so its gradient is 0 and need not be computed.
    logits = logits - lax.stop_gradient(jnp.max(logits, axis=1, keepdims=True))
    weight = jnp.exp(logits)
    total = jnp.sum(weight, axis=1)
    log_total = jnp.log(total)
    # A comparison instead of a gather: it fuses, and it stays local where the vocabulary is
    # sharded.
    is_target = lax.broadcasted_iota(targets.dtype, logits.shape, 1) == targets[:, None]
    logprob = jnp.sum(jnp.where(is_target, logits, 0.0), axis=1) - log_total
    # H = log Z - E[logit]: one pass over the logits, and no logarithm of a probability near 0.
    entropy = log_total - jnp.sum(weight * logits, axis=1) / total
    return logprob, entropy
