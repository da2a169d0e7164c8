"""The static KV cache: what decoding remembers of every slot."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp


@functools.partial(jax.tree_util.register_dataclass, data_fields=("key", "value"), meta_fields=())
@dataclass(frozen=True)
class KVCache:
    """Keys and values of S slots, of static length; how far each slot got is the caller's to know.

    Heads stand before places: attention over a slot is then a batch of S x G plain matrix products on contiguous
    [C, K] blocks, and a decode step reads the cache once, in order.

    Attributes:
      key: [L, S, G, C, K] cache dtype, rotary applied.
      value: [L, S, G, C, K] cache dtype.
    """

    key: jax.Array
    value: jax.Array


def write_prompts(cache: KVCache, key: jax.Array, value: jax.Array, slots: jax.Array) -> KVCache:
    """Writes whole prompts, from place 0 on.

    Args:
      cache: the cache.
      key: [L, B, T, G, K] of every layer.
      value: [L, B, T, G, K].
      slots: [B] i32 the slot of each row; S or more drops the row.

    Returns:
      The cache with the rows in place.
    """

    def write(store: jax.Array, new: jax.Array) -> jax.Array:
        new = jnp.swapaxes(new, 2, 3).astype(store.dtype)
        return store.at[:, slots, :, : new.shape[3]].set(new, mode="drop")

    return KVCache(write(cache.key, key), write(cache.value, value))


def write_tokens(
    cache: KVCache, key: jax.Array, value: jax.Array, layer: jax.Array | int, positions: jax.Array
) -> KVCache:
    """Writes one token of every slot in one layer.

    Args:
      cache: the cache.
      key: [S, G, K] of that layer.
      value: [S, G, K].
      layer: which layer.
      positions: [S] i32 the place in each slot; at or past the cache's length nothing is written.

    Returns:
      The cache with the tokens in place.
    """
    slots = jnp.arange(key.shape[0])

    def write(store: jax.Array, new: jax.Array) -> jax.Array:
        return store.at[layer, slots, :, positions].set(new.astype(store.dtype), mode="drop")

    return KVCache(write(cache.key, key), write(cache.value, value))
