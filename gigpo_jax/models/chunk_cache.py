"""Chunks of prompts in a KV cache: writes behind the tokens of a slot, and copies between slots."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from gigpo_jax.models.cache import KVCache, constrain_order, write_windows
from gigpo_jax.models.routes import with_routes


def write_chunks(
    cache: KVCache,
    key: jax.Array,
    value: jax.Array,
    layer: jax.Array | int,
    slots: jax.Array,
    starts: jax.Array,
) -> KVCache:
    """Writes keys and values of one layer, [B, T, G, K], into `slots` from `starts` on, [B] each.

    Nothing is written into a slot S, or where start + T exceeds C.
    """

    def write_store(store: jax.Array, entries: jax.Array) -> jax.Array:
        return constrain_order(_write_chunk_store(store, entries, layer, slots, starts))

    return replace(cache, key=write_store(cache.key, key), value=write_store(cache.value, value))


def write_chunk_routes(
    cache: KVCache, routes: jax.Array, layer: jax.Array | int, slots: jax.Array, starts: jax.Array
) -> KVCache:
    """Writes the experts of chunks, [B, T, k] of one layer, as `write_chunks` does."""
    assert cache.routes is not None
    entries = routes[:, :, None].astype(cache.routes.dtype)
    return with_routes(cache, _write_chunk_store(cache.routes, entries, layer, slots, starts))


def _write_chunk_store(
    store: jax.Array,
    entries: jax.Array,
    layer: jax.Array | int,
    slots: jax.Array,
    starts: jax.Array,
) -> jax.Array:
    # [B, 1, G, T, K]: a window of one layer.
    windows = jnp.swapaxes(entries, 1, 2)[:, None]
    return write_windows(store, windows, slots, starts, layer)


def copy_chunks(
    cache: KVCache, sources: jax.Array, targets: jax.Array, starts: jax.Array, length: int
) -> KVCache:
    """Copies entries of all layers between slots; all are read before the first is written.

    Args:
      cache: the cache.
      sources: [N] i32, slots to read.
      targets: [N] i32, slots to write; S for none.
      starts: [N] i32, index of the first entry.
      length: number of entries.
    """

    def copy_store(store: jax.Array) -> jax.Array:
        num_layers, _, groups, _, head_dim = store.shape
        sizes = (num_layers, 1, groups, length, head_dim)

        def read_window(slot: jax.Array, start: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice(store, (0, slot, 0, start, 0), sizes)[:, 0]

        # [N, L, G, length, K], all read from the old cache: a target may be the source of another
        # copy.
        windows = jax.vmap(read_window)(sources, starts)
        return write_windows(store, windows, targets, starts)

    copied = replace(
        cache,
        key=constrain_order(copy_store(cache.key)),
        value=constrain_order(copy_store(cache.value)),
    )
    if cache.routes is None:
        return copied
    return with_routes(copied, copy_store(cache.routes))
