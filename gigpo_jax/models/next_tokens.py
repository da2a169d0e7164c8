"""Scores of every next token, for whom a model is all; training never holds so many numbers."""

from typing import Any

import jax

from gigpo_jax.models.decoder import DecoderConfig, Execution, hidden_states, score_tokens
from gigpo_jax.models.layer import Params


def logits(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    *,
    dtype: Any = None,
) -> jax.Array:
    """Scores every next token, [B, T] -> [B, T, V] f32; arguments as for `hidden_states`."""
    hidden = hidden_states(config, params, tokens, positions, segment_ids, Execution(dtype))
    return score_tokens(config, params, hidden)
