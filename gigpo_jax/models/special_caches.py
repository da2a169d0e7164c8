"""What a cache has beside keys and values of whole texts: windows, states, experts of tokens."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from gigpo_jax.models.cache import KVCache, write_prompts
from gigpo_jax.models.decoder import ModelResult
from gigpo_jax.models.decoder_config import LAYERS, DecoderConfig


def add_special(
    config: DecoderConfig, cache: KVCache, *, keeps_routes: bool, prefill_chunk: int, rows: int
) -> KVCache:
    """Adds what the model's layers need to an empty cache; arguments as for `init_cache`."""
    _, slots, _, length, _ = cache.key.shape
    if config.num_window_layers:
        from gigpo_jax.models.window_cache import init_windows, window_length

        held = window_length(config.sliding_window, length, prefill_chunk, rows)
        cache = replace(cache, windows=init_windows(config, slots, held, cache.key.dtype))
    if config.delta is not None:
        from gigpo_jax.models.delta_layer import init_states

        checkpoints = init_states(config, slots) if prefill_chunk else None
        cache = replace(cache, states=init_states(config, slots), checkpoints=checkpoints)
    if keeps_routes and config.experts is not None:
        from gigpo_jax.models.routes import route_dtype

        depth = len(config.layer_numbers(LAYERS))
        shape = (depth, slots, 1, length, config.experts.per_token)
        cache = replace(cache, routes=jnp.zeros(shape, route_dtype(config.experts.count)))
    return cache


def write_special(
    config: DecoderConfig,
    cache: KVCache,
    result: ModelResult,
    lengths: jax.Array,
    slots: jax.Array,
) -> KVCache:
    """Writes the results of prompts [B] into their slots; arguments as for `decoding.prefill`."""
    keys, values = result.keys_values
    if cache.windows is not None:
        from gigpo_jax.models.window_cache import write_prompt_windows

        cache, keys, values = write_prompt_windows(config, cache, keys, values, lengths, slots)
    cache = write_prompts(cache, keys, values, slots)
    if cache.routes is not None:
        from gigpo_jax.models.routes import write_prompt_routes

        cache = write_prompt_routes(cache, result.routes, slots)
    if cache.states is not None:
        from gigpo_jax.models.delta_layer import write_states

        cache = replace(cache, states=write_states(cache.states, result.states, slots))
    return cache
