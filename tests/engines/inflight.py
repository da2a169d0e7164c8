"""What responses have whose weights changed on the way."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.models import decoder, decoding, next_tokens

prefill = jax.jit(decoding.prefill, static_argnums=0)
decode = jax.jit(decoding.decode, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def score(config: decoder.DecoderConfig, params: decoder.Params, tokens: jax.Array) -> jax.Array:
    """Log-probabilities [N, T - 1] of tokens [N, T] but the first."""
    scores = jax.nn.log_softmax(next_tokens.logits(config, params, tokens)[:, :-1])
    return jnp.take_along_axis(scores, tokens[:, 1:, None], 2)[..., 0]


def logprobs_across(
    config: decoder.DecoderConfig,
    old: decoder.Params,
    new: decoder.Params,
    prompts: np.ndarray,
    responses: np.ndarray,
    first: int,
) -> np.ndarray:
    """Log-probabilities [N, T] of responses [N, T] to prompts [N, P].

    Tokens before `first` are sampled from the old weights. Later tokens are from the new ones,
    which read the keys and values of the old ones.
    """
    tokens = jnp.asarray(np.concatenate([prompts, responses], 1))
    rows, length = tokens.shape
    # The last token of the old weights is read by the new ones.
    start = prompts.shape[1] + first - 1
    values = np.array(score(config, old, tokens)[:, prompts.shape[1] - 1 :])
    cache = decoding.init_cache(config, rows, length)
    lengths = jnp.full(rows, start)
    _, cache = prefill(config, old, cache, tokens[:, :start], lengths, jnp.arange(rows))
    for index in range(start, length - 1):
        logits, cache = decode(config, new, cache, tokens[:, index], jnp.full(rows, index))
        scores = jax.nn.log_softmax(logits)
        column = index + 1 - prompts.shape[1]
        values[:, column] = scores[np.arange(rows), tokens[:, index + 1]]
    return values
