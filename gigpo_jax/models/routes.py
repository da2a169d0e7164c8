"""Routes: the experts that tokens go through, of a forward pass and in a cache."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout

from gigpo_jax.models.cache import KVCache, constrain_order, write_prompt_store, write_token_store
from gigpo_jax.models.decoder import run_model
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.execution import Execution
from gigpo_jax.models.layer import Params

# Memory order of routes [L', S, 1, C, k] on TPUs. As the last axis in memory, the few experts of a
# token would be padded to 128.
ROUTE_ORDER = Layout((0, 1, 2, 4, 3))


def route_dtype(experts: int) -> np.dtype:
    """Returns the smallest dtype for numbers of experts."""
    return np.dtype(np.uint8 if experts <= 256 else np.uint16)


def chosen_experts(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    execution: Execution = Execution(),
    routes: jax.Array | None = None,
) -> jax.Array:
    """Returns the experts that tokens go through, [B, T, R] i32, as `routes` of `hidden_states`.

    Other arguments are as for `hidden_states`.
    """
    result = run_model(
        config,
        params,
        tokens,
        positions,
        segment_ids,
        execution,
        None,
        routes=routes,
        keeps_routes=True,
    )
    return merge_routes(result.routes)


def merge_routes(routes: jax.Array) -> jax.Array:
    """Joins the experts of tokens in all layers, [L', ..., k] -> [..., L' k]."""
    moved = jnp.moveaxis(routes, 0, -2)
    return moved.reshape(*moved.shape[:-2], -1)


def write_prompt_routes(cache: KVCache, routes: jax.Array, slots: jax.Array) -> KVCache:
    """Writes the experts of prompts, [L', B, T, k], as `write_prompts` does."""
    assert cache.routes is not None
    entries = routes[..., None, :].astype(cache.routes.dtype)
    return with_routes(cache, write_prompt_store(cache.routes, entries, slots))


def write_token_routes(
    cache: KVCache, routes: jax.Array, layer: jax.Array | int, positions: jax.Array
) -> KVCache:
    """Writes the experts of tokens, [S, k] of one layer, as `write_tokens` does."""
    assert cache.routes is not None
    entries = routes[:, None].astype(cache.routes.dtype)
    return with_routes(cache, write_token_store(cache.routes, entries, layer, positions))


def with_routes(cache: KVCache, routes: jax.Array) -> KVCache:
    return replace(cache, routes=constrain_order(routes, ROUTE_ORDER))
