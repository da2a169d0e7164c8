"""The KV cache of static shape."""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

# Arrays of this dtype hold bfloat16 numbers, and XLA slices them on CPUs without copies.
BITS = jnp.uint16


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """Keys and values of S slots of length C.

    The caller counts the tokens in each slot. The head axis comes before the token axis: attention
    is then a batch of S x G matrix products on contiguous [C, K] blocks, and a decode step reads
    the cache once, in order.

    Attributes:
      key: [L, S, G, C, K] of the compute dtype, or the bits of bfloat16; rotary applied. L counts
        the layers whose attention sees whole texts.
      value: [L, S, G, C, K] of the same dtype.
      routes: [L', S, 1, C, k] of `route_dtype`, experts of each token in the L' layers that have
        experts; None: they are not kept.
      states: `DeltaState` of the layers without attention; None for models that have none.
      checkpoints: such states before the last chunk of each slot's prompt, for prompts that
        continue them; None: not kept.
      windows: cache of the layers that see a window, see `window_cache`; None if there are none.
    """

    key: jax.Array
    value: jax.Array
    routes: jax.Array | None = None
    states: Any = None
    checkpoints: Any = None
    windows: "KVCache | None" = None

    @property
    def is_plain(self) -> bool:
        """Whether it has nothing but keys and values of whole texts."""
        return self.routes is None and self.states is None and self.windows is None


def cache_length(tokens: int, prefill_chunk: int) -> int:
    """Returns C for sequences of at most `tokens` tokens, with room for a padded last chunk."""
    chunk = prefill_chunk or 1
    return -(-tokens // chunk) * chunk


def memory_order(num_axes: int, heads: int) -> Layout:
    """Returns the memory order of keys and values on TPUs: the heads of a token are contiguous.

    It is for arrays [..., G, C, K], and `heads` is G of one device.
    """
    # One head is contiguous in any order. Beside the last axis in memory, which has whole tiles,
    # it would be stored as two, and XLA copies the cache in loops to be rid of the padding.
    if heads == 1:
        return Layout(tuple(range(num_axes)))
    # A token is then written whole. In the order of the axes XLA copies the cache to this order to
    # write, and back to read.
    *outer, heads, tokens, width = range(num_axes)
    return Layout((*outer, tokens, heads, width))


def constrain_order(array: jax.Array, order: Layout | None = None) -> jax.Array:
    """Keeps a cache or its slice in a memory order on TPUs alone, by default `memory_order`."""

    # In loops XLA would depart from the order of the arguments.
    def constrain(x: jax.Array) -> jax.Array:
        return with_layout_constraint(x, order or memory_order(x.ndim, x.shape[-3]))

    mesh = jax.sharding.get_abstract_mesh()
    split_axes = tuple(
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Auto
    )
    if split_axes:
        # The compiler splits the heads of this program over devices. It loses the split at a
        # constraint, and would gather the whole cache for every token.
        is_split = array.shape[-3] % math.prod(mesh.shape[name] for name in split_axes) == 0
        spec = P(*[None] * (array.ndim - 3), split_axes if is_split else None)
        constrain = jax.shard_map(
            constrain, in_specs=spec, out_specs=spec, axis_names={*split_axes}, check_vma=False
        )
    return jax.lax.platform_dependent(array, tpu=constrain, default=lambda x: x)


def to_compute_dtype(array: jax.Array, dtype: Any) -> jax.Array:
    """Converts a slice of a cache to a compute dtype."""
    if array.dtype == BITS:
        return jax.lax.bitcast_convert_type(array, jnp.bfloat16)
    return array.astype(dtype)


def to_cache_dtype(store: jax.Array, entries: jax.Array) -> jax.Array:
    if store.dtype == entries.dtype:
        return entries
    if store.dtype == BITS:
        return jax.lax.bitcast_convert_type(entries, BITS)
    return entries.astype(store.dtype)


def write_prompts(cache: KVCache, key: jax.Array, value: jax.Array, slots: jax.Array) -> KVCache:
    """Writes keys and values of prompts, [L, B, T, G, K], into slots [B] from index 0 on.

    Row b goes into slot slots[b], nowhere for S.
    """

    def write_store(store: jax.Array, entries: jax.Array) -> jax.Array:
        return constrain_order(write_prompt_store(store, entries, slots))

    return replace(cache, key=write_store(cache.key, key), value=write_store(cache.value, value))


def write_prompt_store(store: jax.Array, entries: jax.Array, slots: jax.Array) -> jax.Array:
    # [B, L, G, T, K]. The padding of prompts is written too: no position reaches it before decoding
    # has overwritten it.
    windows = jnp.swapaxes(entries, 2, 3).swapaxes(0, 1)
    return write_windows(store, windows, slots, jnp.zeros_like(slots))


def write_tokens(
    cache: KVCache, key: jax.Array, value: jax.Array, layer: jax.Array | int, positions: jax.Array
) -> KVCache:
    """Writes key and value of one token of every slot, [S, G, K] of one layer.

    `positions` [S] i32 are the tokens' indices in their slots; at C or more nothing is written.
    """

    def write_store(store: jax.Array, entries: jax.Array) -> jax.Array:
        return constrain_order(write_token_store(store, entries, layer, positions))

    return replace(cache, key=write_store(cache.key, key), value=write_store(cache.value, value))


def write_token_store(
    store: jax.Array, entries: jax.Array, layer: jax.Array | int, positions: jax.Array
) -> jax.Array:
    slots = jnp.arange(entries.shape[0])
    updates = to_cache_dtype(store, entries)
    # Indices around a slice put their common axis first: the target is [S, G, K], as the updates.
    return store.at[layer, slots, :, positions].set(updates, mode="drop")


def write_windows(
    store: jax.Array,
    windows: jax.Array,
    slots: jax.Array,
    starts: jax.Array,
    layer: jax.Array | int = 0,
) -> jax.Array:
    """Writes windows [B, L', G, T, K] into a store [L, S, G, C, K].

    They start at `layer` and at `starts` [B]. Windows that reach beyond the store are dropped.
    """
    # Whole windows: for single tokens XLA's TPU backend transposes the cache.
    indices = jnp.stack([jnp.full_like(slots, layer), slots, starts], axis=-1)
    dimensions = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(1, 2, 3, 4),
        inserted_window_dims=(1,),
        scatter_dims_to_operand_dims=(0, 1, 3),
    )
    updates = to_cache_dtype(store, windows)
    # Clamping would move such a window over entries of other tokens.
    mode = jax.lax.GatherScatterMode.FILL_OR_DROP
    return jax.lax.scatter(store, indices, updates, dimensions, mode=mode)
