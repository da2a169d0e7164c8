"""Caches of layers that see a window of tokens.

The key and the value of the token at index t of a text lie at t % W of a cache of length W, which
thus has the last W tokens.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.models.cache import KVCache, constrain_order, to_cache_dtype, write_prompts
from gigpo_jax.models.decoder_config import DecoderConfig


def window_length(window: int, capacity: int, prefill_chunk: int, rows: int) -> int:
    """Returns the length of the cache of layers that see `window` tokens.

    Args:
      window: tokens that a query sees, its own included.
      capacity: C, length of the cache of other layers.
      prefill_chunk: length of a chunk, tokens; 0: prompts are read whole.
      rows: chunks that a call reads.
    """
    # A call writes all of its chunks before the first one is read. And other prompts may continue
    # a prompt: a response of a window does not overwrite what they need.
    spare = max(rows * prefill_chunk, window + prefill_chunk) if prefill_chunk else 0
    return min(window + spare, capacity)


def init_windows(config: DecoderConfig, slots: int, length: int, dtype: Any) -> KVCache:
    """Makes the empty cache [L, S, G, W, K] of the layers with a window."""
    shape = (config.num_window_layers, slots, config.num_kv_heads, length, config.head_dim)
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def write_prompt_windows(
    config: DecoderConfig,
    cache: KVCache,
    key: jax.Array,
    value: jax.Array,
    lengths: jax.Array,
    slots: jax.Array,
) -> tuple[KVCache, jax.Array, jax.Array]:
    """Writes the last tokens of prompts into the windows of a cache.

    Args:
      config: model shape.
      cache: cache with windows.
      key: [L, B, T, G, K] of all layers.
      value: [L, B, T, G, K].
      lengths: [B] i32, tokens of the prompts.
      slots: [B] i32, slot of each prompt; S for none.

    Returns:
      The cache, and keys and values of the other layers.
    """
    assert cache.windows is not None
    has_window = np.array([kind.window > 0 for kind in config.attention_kinds])
    last = lengths[:, None] - 1
    places = jnp.arange(cache.windows.key.shape[3])
    # The newest token of each place; places without one get token 0, which nobody sees there.
    tokens = jnp.maximum(last - (last - places) % len(places), 0)[None, :, :, None, None]
    newest_key, newest_value = (
        jnp.take_along_axis(x[has_window], tokens, axis=2) for x in (key, value)
    )
    windows = write_prompts(cache.windows, newest_key, newest_value, slots)
    return replace(cache, windows=windows), key[~has_window], value[~has_window]


def write_window_tokens(
    cache: KVCache,
    entries: tuple[jax.Array, jax.Array],
    layer: jax.Array | int,
    slots: jax.Array,
    positions: jax.Array,
    capacity: int,
) -> KVCache:
    """Writes tokens of one layer.

    Args:
      cache: the windows of a cache.
      entries: keys and values, each [B, T, G, K].
      layer: index of the layer.
      slots: [B] i32, slot of each row; nothing is written into a slot S.
      positions: [B, T] i32, indices of the tokens; nothing is written at `capacity` or more.
      capacity: length of the cache of other layers.
    """
    length = cache.key.shape[3]
    places = jnp.where(positions < capacity, positions % length, length)

    def write_store(store: jax.Array, entries: jax.Array) -> jax.Array:
        updates = to_cache_dtype(store, entries)
        return constrain_order(store.at[layer, slots[:, None], :, places].set(updates, mode="drop"))

    return KVCache(write_store(cache.key, entries[0]), write_store(cache.value, entries[1]))


def write_window_token(
    cache: KVCache,
    key: jax.Array,
    value: jax.Array,
    layer: jax.Array | int,
    positions: jax.Array,
    capacity: int,
) -> KVCache:
    """Writes one token of every slot, as `write_tokens`; `capacity` as for several tokens."""
    slots = jnp.arange(len(positions))
    entries = (key[:, None], value[:, None])
    return write_window_tokens(cache, entries, layer, slots, positions[:, None], capacity)


def copy_ends(cache: KVCache, sources: jax.Array, targets: jax.Array) -> KVCache:
    """Copies what slots have at the end of a prompt alone: windows, and checkpoints into states.

    Arguments are as for `copy_chunks`.
    """

    def copy_slots(store: jax.Array, source_store: jax.Array) -> jax.Array:
        return store.at[:, targets].set(source_store[:, sources], mode="drop")

    return replace(
        cache,
        states=jax.tree.map(copy_slots, cache.states, cache.checkpoints),
        windows=jax.tree.map(lambda x: constrain_order(copy_slots(x, x)), cache.windows),
    )
