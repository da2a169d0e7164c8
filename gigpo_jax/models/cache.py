"""The KV cache of static shape."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from gigpo_jax.models.on_cpu import BITS, bits, numbers


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """Keys and values of S slots of length C; the caller keeps the number of tokens in each slot.

    The head axis comes before the token axis: attention is then a batch of S x G matrix products on contiguous [C, K]
    blocks, and a decode step reads the cache once, in order.

    Attributes:
      key: [L, S, G, C, K] of the compute dtype, or the bits of bfloat16; rotary applied.
      value: [L, S, G, C, K] of the same dtype.
    """

    key: jax.Array
    value: jax.Array


def cache_length(tokens: int, prefill_chunk: int) -> int:
    """C for sequences of so many tokens: with room for the padding of a last chunk, if prompts are read in chunks."""
    chunk = prefill_chunk or 1
    return -(-tokens // chunk) * chunk


def memory_order(axes: int) -> Layout:
    """The order in memory of an array [..., G, C, K] of a cache on TPUs: the heads of a token lie together.

    So a token is written whole. In the order of the axes XLA copies the cache to this one to write, and back to read.
    """
    *outer, heads, tokens, width = range(axes)
    return Layout((*outer, tokens, heads, width))


def in_order(part: jax.Array) -> jax.Array:
    """A cache, or a part of it, in its `memory_order` on TPUs, from which XLA departs in loops; unchanged elsewhere."""
    order = memory_order(part.ndim)
    return jax.lax.platform_dependent(part, tpu=lambda x: with_layout_constraint(x, order), default=lambda x: x)


def as_numbers(part: jax.Array, dtype: Any) -> jax.Array:
    """A part of a cache in a compute dtype."""
    return numbers(part) if part.dtype == BITS else part.astype(dtype)


def _as_in(store: jax.Array, new: jax.Array) -> jax.Array:
    if store.dtype == new.dtype:
        return new
    return bits(new) if store.dtype == BITS else new.astype(store.dtype)


def write_prompts(cache: KVCache, key: jax.Array, value: jax.Array, slots: jax.Array) -> KVCache:
    """Writes the keys and values [L, B, T, G, K] of prompts from index 0 on, row b into slot slots[b] (S: none)."""

    def write(store: jax.Array, new: jax.Array) -> jax.Array:
        return _write(store, jnp.swapaxes(new, 2, 3).swapaxes(0, 1), slots, jnp.zeros_like(slots))

    return KVCache(write(cache.key, key), write(cache.value, value))


def write_chunks(
    cache: KVCache, key: jax.Array, value: jax.Array, layer: jax.Array | int, slots: jax.Array, starts: jax.Array
) -> KVCache:
    """Writes keys and values [B, T, G, K] of one layer from `starts` [B] on into `slots` [B].

    Nothing is written into a slot S, or where start + T exceeds C.
    """

    def write(store: jax.Array, new: jax.Array) -> jax.Array:
        return _write(store, jnp.swapaxes(new, 1, 2)[:, None], slots, starts, layer)

    return KVCache(write(cache.key, key), write(cache.value, value))


def copy_chunks(cache: KVCache, sources: jax.Array, targets: jax.Array, starts: jax.Array, length: int) -> KVCache:
    """Copies `length` entries of all layers, from `starts` [N] on, from slots `sources` [N] to `targets` [N] (S: none).

    All are read before the first is written.
    """

    def copy(store: jax.Array) -> jax.Array:
        layers, _, groups, _, head_dim = store.shape
        read = jax.vmap(
            lambda slot, start: jax.lax.dynamic_slice(
                store, (0, slot, 0, start, 0), (layers, 1, groups, length, head_dim)
            )[:, 0]
        )(sources, starts)
        return _write(store, read, targets, starts)

    return KVCache(copy(cache.key), copy(cache.value))


def _write(
    store: jax.Array, new: jax.Array, slots: jax.Array, starts: jax.Array, layer: jax.Array | int = 0
) -> jax.Array:
    """Writes new [B, L', G, T, K] into store [L, S, G, C, K] from `layer` and `starts` [B] on; outside of it nothing.

    Whole windows: for single tokens XLA's TPU backend transposes the cache.
    """
    at = jnp.stack([jnp.full_like(slots, layer), slots, starts], axis=-1)
    dims = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(1, 2, 3, 4), inserted_window_dims=(1,), scatter_dims_to_operand_dims=(0, 1, 3)
    )
    return in_order(jax.lax.scatter(store, at, _as_in(store, new), dims, mode=jax.lax.GatherScatterMode.FILL_OR_DROP))


def write_tokens(
    cache: KVCache, key: jax.Array, value: jax.Array, layer: jax.Array | int, positions: jax.Array
) -> KVCache:
    """Writes key and value [S, G, K] of one token of every slot in one layer.

    `positions` [S] i32 are the tokens' indices in their slots; at C or more nothing is written.
    """
    slots = jnp.arange(key.shape[0])

    def write(store: jax.Array, new: jax.Array) -> jax.Array:
        return in_order(store.at[layer, slots, :, positions].set(_as_in(store, new), mode="drop"))

    return KVCache(write(cache.key, key), write(cache.value, value))
