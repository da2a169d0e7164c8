"""Attention of new tokens over their slots' cache on NVIDIA GPUs, a Triton kernel.

A slot has few queries, and XLA's products of them with the cache take four times as long on an
H200. Here a program reads a part of a slot's entries once, for all queries that share a key head,
or `TILE` of them, and no entry behind the last position of these.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

QUERIES = 16  # rows of the smallest product of the tensor cores; those without a query are masked
TILE = 64  # queries of a program where there are more, as in chunks of prompts
BLOCK = 64  # entries of the cache that a program reads together
# The fastest of 20 settings on an H200, with 16 and with 128 slots.
PROGRAMS = 512  # a cache is cut into parts until there are as many programs
WARPS = 4  # of a program
STAGES = 2  # blocks that are read ahead, and the one that is computed
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)


def fits(query: jax.Array, key: jax.Array) -> bool:
    """Returns whether the kernel takes such arrays; arguments as for `decode_attention`."""
    *_, heads, head_dim = query.shape
    in_half = query.dtype in (jnp.bfloat16, jnp.float16) and key.dtype == query.dtype
    is_power = head_dim & (head_dim - 1) == 0
    return in_half and is_power and 16 <= head_dim <= 128 and heads // key.shape[2] <= QUERIES


def decode_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    layer: jax.Array | int,
    slots: jax.Array | None,
    positions: jax.Array,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Attention of new tokens of rows.

    The parts of a slot are joined by the maxima and sums of their softmax (arXiv 2205.14135). How a
    cache is cut depends on shapes alone, so a result does not depend on other rows.

    Arguments and result as for `chunk_attention.chunk_attention`. With `interpret` it runs on any
    platform, slowly.
    """
    rows, length, heads, head_dim = query.shape
    num_slots, groups, capacity = key.shape[1:4]
    shared = heads // groups
    count = length * shared
    tile = QUERIES if count <= QUERIES else TILE
    tiles = pl.cdiv(count, tile)
    blocks = pl.cdiv(capacity, BLOCK)
    part_blocks = pl.cdiv(blocks, pl.cdiv(PROGRAMS, rows * groups * tiles))
    parts = pl.cdiv(blocks, part_blocks)

    queries = query.reshape(rows, length, groups, shared, head_dim)
    queries = queries.swapaxes(1, 2).reshape(rows, groups, count, head_dim)
    # A row without a new token reads one entry: its result is finite, and dropped. A row of a slot
    # that does not exist reads the last one.
    filled = jnp.repeat(jnp.where(positions < capacity, positions + 1, 1), shared, axis=1)
    places = jnp.arange(rows) if slots is None else jnp.minimum(slots, num_slots - 1)
    layers = jnp.full((1,), layer, jnp.int32)
    sums_shape = (rows, groups, parts, count)
    sums_spec = pl.BlockSpec(
        (None, None, None, tile), lambda r, g, p: (r, g, p % parts, p // parts)
    )
    mixed, highest, total = pl.pallas_call(
        functools.partial(_attend_part, part_blocks, parts, count),
        grid=(rows, groups, tiles * parts),
        in_specs=[
            pl.BlockSpec((None, None, tile, head_dim), lambda r, g, p: (r, g, p // parts, 0)),
            *map(_whole, (key, value, layers, places)),
            pl.BlockSpec((None, tile), lambda r, g, p: (r, p // parts)),
        ],
        out_specs=[
            pl.BlockSpec(
                (None, None, None, tile, head_dim), lambda r, g, p: (r, g, p % parts, p // parts, 0)
            ),
            sums_spec,
            sums_spec,
        ],
        out_shape=[
            jax.ShapeDtypeStruct((*sums_shape, head_dim), jnp.float32),
            jax.ShapeDtypeStruct(sums_shape, jnp.float32),
            jax.ShapeDtypeStruct(sums_shape, jnp.float32),
        ],
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=STAGES),
        interpret=interpret,
        name="decode_attention",
    )(queries, key, value, layers, places, filled)
    joined = _join_softmax_parts(mixed, highest, total)
    joined = joined.reshape(rows, groups, length, shared, head_dim).swapaxes(1, 2)
    return joined.reshape(query.shape).astype(query.dtype)


def _whole(array: jax.Array) -> pl.BlockSpec:
    return pl.BlockSpec(array.shape, lambda *_: (0,) * array.ndim)


def _join_softmax_parts(mixed: jax.Array, highest: jax.Array, total: jax.Array) -> jax.Array:
    # Part 0 has the first entry, which every query sees: the maximum is a real score.
    weights = jnp.exp(highest - highest.max(axis=2, keepdims=True))
    return (mixed * weights[..., None]).sum(axis=2) / (total * weights).sum(axis=2)[..., None]


def _attend_part(
    part_blocks: int,
    parts: int,
    count: int,
    query_ref: Any,
    key_ref: Any,
    value_ref: Any,
    layer_ref: Any,
    slot_ref: Any,
    filled_ref: Any,
    mixed_ref: Any,
    highest_ref: Any,
    total_ref: Any,
) -> None:
    """Mixes the values of one part for a tile of queries; gives its softmax sums."""
    row, group, place = (pl.program_id(axis) for axis in range(3))
    layer = layer_ref[0]
    slot = slot_ref[row]
    tile, head_dim = query_ref.shape
    is_query = place // parts * tile + jnp.arange(tile) < count
    query = triton.load(query_ref, mask=is_query[:, None], other=0.0)
    filled = triton.load(filled_ref, mask=is_query, other=1)
    most_filled = filled.max()
    first = place % parts * part_blocks

    def read(ref: Any, start: jax.Array, visible: jax.Array) -> jax.Array:
        entries = ref.at[layer, slot, group, pl.ds(start, BLOCK), :]
        return triton.load(entries, mask=visible[:, None], other=0.0)

    def add_block(
        index: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        mixed, highest, total = carry
        start = index * BLOCK
        entries = start + jnp.arange(BLOCK)
        visible = entries < most_filled
        scores = triton.dot(query, read(key_ref, start, visible).T) * head_dim**-0.5
        scores = jnp.where(entries[None] < filled[:, None], scores, MASKED)
        new_highest = jnp.maximum(highest, scores.max(axis=-1))
        probs = jnp.exp(scores - new_highest[:, None])
        decay = jnp.exp(highest - new_highest)
        added = triton.dot(probs.astype(query.dtype), read(value_ref, start, visible))
        return mixed * decay[:, None] + added, new_highest, total * decay + probs.sum(axis=-1)

    last = jnp.minimum(first + part_blocks, pl.cdiv(most_filled, BLOCK))
    empty = (
        jnp.zeros((tile, head_dim), jnp.float32),
        jnp.full((tile,), MASKED, jnp.float32),
        jnp.zeros((tile,), jnp.float32),
    )
    mixed, highest, total = jax.lax.fori_loop(first, last, add_block, empty)
    triton.store(mixed_ref, mixed, mask=is_query[:, None])
    triton.store(highest_ref, highest, mask=is_query)
    triton.store(total_ref, total, mask=is_query)
