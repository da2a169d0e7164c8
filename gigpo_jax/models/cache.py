"""The KV cache of static shape."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """Keys and values of S slots of length C; the caller keeps the number of tokens in each slot.

    The head axis comes before the token axis: attention is then a batch of S x G matrix products on contiguous [C, K]
    blocks, and a decode step reads the cache once, in order.

    Attributes:
      key: [L, S, G, C, K] cache dtype, rotary applied.
      value: [L, S, G, C, K] cache dtype.
    """

    key: jax.Array
    value: jax.Array


def write_prompts(cache: KVCache, key: jax.Array, value: jax.Array, slots: jax.Array) -> KVCache:
    """Writes the keys and values [L, B, T, G, K] of prompts from index 0 on, row b into slot slots[b] (S: none)."""

    def write(store: jax.Array, new: jax.Array) -> jax.Array:
        new = jnp.swapaxes(new, 2, 3).astype(store.dtype)
        return store.at[:, slots, :, : new.shape[3]].set(new, mode="drop")

    return KVCache(write(cache.key, key), write(cache.value, value))


def write_chunks(
    cache: KVCache, key: jax.Array, value: jax.Array, layer: jax.Array | int, slots: jax.Array, positions: jax.Array
) -> KVCache:
    """Writes keys and values [B, T, G, K] of one layer at `positions` [B, T] of `slots` [B]; a slot S: none."""

    def write(store: jax.Array, new: jax.Array) -> jax.Array:
        return store.at[layer, slots[:, None], :, positions].set(new.astype(store.dtype), mode="drop")

    return KVCache(write(cache.key, key), write(cache.value, value))


def copy_chunks(cache: KVCache, sources: jax.Array, targets: jax.Array, starts: jax.Array, length: int) -> KVCache:
    """Copies `length` entries of all layers, from `starts` [N] on, from slots `sources` [N] to `targets` [N] (S: none).

    All are read before the first is written.
    """
    positions = starts[:, None] + jnp.arange(length)

    def copy(store: jax.Array) -> jax.Array:
        read = store.at[:, sources[:, None], :, positions].get(mode="clip")
        return store.at[:, targets[:, None], :, positions].set(read, mode="drop")

    return KVCache(copy(cache.key), copy(cache.value))


def write_tokens(
    cache: KVCache, key: jax.Array, value: jax.Array, layer: jax.Array | int, positions: jax.Array
) -> KVCache:
    """Writes key and value [S, G, K] of one token of every slot in one layer.

    `positions` [S] i32 are the tokens' indices in their slots; at C or more nothing is written.
    """
    slots = jnp.arange(key.shape[0])

    def write(store: jax.Array, new: jax.Array) -> jax.Array:
        return store.at[layer, slots, :, positions].set(new.astype(store.dtype), mode="drop")

    return KVCache(write(cache.key, key), write(cache.value, value))
