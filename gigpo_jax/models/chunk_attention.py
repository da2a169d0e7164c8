"""Attention of a prompt's chunk over the tokens that its slot holds."""

import jax
import jax.numpy as jnp

from gigpo_jax.models.cache import constrain_order, to_compute_dtype
from gigpo_jax.models.masks import BLOCK, MASKED, visible_entries


def chunk_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    layer: jax.Array | int,
    slots: jax.Array | None,
    positions: jax.Array,
    window: int = 0,
    kernels: str | None = None,
) -> jax.Array:
    """Computes attention of chunks of sequences over their slots' cache.

    The cache holds the chunks too. It is read up to the last position, and a result does not depend
    on other rows.

    Args:
      query: [B, T, H, K] in the compute dtype, rotary applied.
      key: [L, S, G, C, K] the cache.
      value: [L, S, G, C, K].
      layer: index of the layer.
      slots: [B] i32, the slot of each row; None: row b is in slot b.
      positions: [B, T] i32, indices in the slot; later entries are masked. C or more: padding.
      window: tokens as for `attention.cached_attention`.
      kernels: result of `kernels_for` for the device that this is compiled for; None: plain XLA.

    Returns:
      [B, T, H, K] in the dtype of `query`.
    """
    if kernels in ("gpu", "hopper"):
        # Takes a second to import, and only GPUs need it.
        from gigpo_jax.models import decode_kernel

        if not window and decode_kernel.fits(query, key):
            return decode_kernel.decode_attention(query, key, value, layer, slots, positions)
    return _attend_blocks(query, key, value, layer, slots, positions, window)


def _attend_blocks(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    layer: jax.Array | int,
    slots: jax.Array | None,
    positions: jax.Array,
    window: int,
) -> jax.Array:
    """Computes `chunk_attention` in plain XLA.

    It goes over blocks of the cache up to the last position, with the running maximum and sum of
    the softmax (arXiv 2205.14135, algorithm 1). Further blocks would not change a bit.
    """
    rows, length, heads, head_dim = query.shape
    groups, capacity = key.shape[2:4]
    block = _block_size(capacity)
    query = query.reshape(rows, length, groups, heads // groups, head_dim)

    def read_block(store: jax.Array, start: jax.Array) -> jax.Array:
        # One slice: XLA would take a slice of the layer alone out of the loop, and copy the layer.
        sizes = (1, *store.shape[1:3], block, head_dim)
        entries = constrain_order(jax.lax.dynamic_slice(store, (layer, 0, 0, start, 0), sizes))[0]
        # A row of a slot that does not exist reads the last one: its result is dropped.
        if slots is not None:
            entries = entries.at[slots].get(mode="clip")
        return to_compute_dtype(entries, query.dtype)

    def add_block(index: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        out, highest, total = carry
        # The last block may overlap the one before it; entries count in their first block.
        start = jnp.minimum(index * block, capacity - block)
        entry = start + jnp.arange(block)
        visible = visible_entries(entry, positions, capacity, window) & (entry >= index * block)
        scores = jnp.einsum(
            "btgrk,bgck->bgtrc", query, read_block(key, start), preferred_element_type=jnp.float32
        )
        scores = jnp.where(visible[:, None, :, None], scores * head_dim**-0.5, MASKED)
        # A block that is masked for a query changes nothing: `decay` is 1, and exp(MASKED -
        # highest) is 0. Entry 0 is visible to every query, so the maximum is a real score from
        # block 0 on. With a window it is one from the first visible block on: there `decay` is 0,
        # which takes away what masked blocks added.
        new_highest = jnp.maximum(highest, jnp.max(scores, axis=-1))
        # Sums of earlier blocks were taken relative to the old maximum: `decay` makes them relative
        # to the new one.
        probs = jnp.exp(scores - new_highest[..., None])
        decay = jnp.exp(highest - new_highest)
        mixed = jnp.einsum(
            "bgtrc,bgck->bgtrk",
            probs.astype(query.dtype),
            read_block(value, start),
            preferred_element_type=jnp.float32,
        )
        new_total = total * decay + jnp.sum(probs, axis=-1)
        return out * decay[..., None] + mixed, new_highest, new_total

    # Padding does not count: its positions, C or more, would make every call read the whole cache.
    filled = jnp.max(jnp.where(positions < capacity, positions, 0)) + 1
    num_blocks = -(-capacity // block) if window else (filled + block - 1) // block
    shape = (rows, groups, length, heads // groups)
    # float32 in every compute dtype: each block multiplies the sums by `decay` once more.
    carry = (jnp.zeros((*shape, head_dim)), jnp.full(shape, MASKED), jnp.zeros(shape))
    out, _, total = jax.lax.fori_loop(0, num_blocks, add_block, carry)
    out = jnp.swapaxes(out / total[..., None], 1, 2)
    return out.reshape(rows, length, heads, head_dim).astype(query.dtype)


def _block_size(capacity: int) -> int:
    """Returns the number of entries of a block, at most `BLOCK` and a multiple of 32.

    Blocks are equal, and as few as needed.
    """
    num_blocks = -(-capacity // BLOCK)
    even_size = -(-capacity // num_blocks)
    return min(-(-even_size // 32) * 32, capacity)
