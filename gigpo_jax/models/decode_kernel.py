"""Attention of one new token per slot on NVIDIA GPUs, a Triton kernel.

A slot has few queries, and XLA's products of them with the cache take four times as long on an
H200. Here a program reads a part of a slot's entries once, for all queries that share a
key head, and no entry behind the slot's position.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

QUERIES = 16  # rows of the smallest product of the tensor cores; those without a query are masked
BLOCK = 64  # entries of the cache that a program reads together
# The fastest of 20 settings on an H200, with 16 and with 128 slots.
PROGRAMS = 512  # a cache is cut into parts until there are as many programs
WARPS = 4  # of a program
STAGES = 2  # blocks that are read ahead, and the one that is computed
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)


def fits(query: jax.Array, key: jax.Array) -> bool:
    """Returns whether the kernel takes such arrays; arguments as for `decode_attention`."""
    _, heads, head_dim = query.shape
    in_half = query.dtype in (jnp.bfloat16, jnp.float16) and key.dtype == query.dtype
    is_power = head_dim & (head_dim - 1) == 0
    return in_half and is_power and 16 <= head_dim <= 128 and heads // key.shape[2] <= QUERIES


def decode_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    layer: jax.Array | int,
    positions: jax.Array,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Attention of one new token per slot.

    The parts of a slot are joined by the maxima and sums of their softmax (arXiv 2205.14135). How a
    cache is cut depends on its shape alone, so a result does not depend on other slots.

    Arguments and result as for `attention.cached_attention`. With `interpret` it runs on any
    platform, slowly.
    """
    slots, heads, head_dim = query.shape
    groups, capacity = key.shape[2:4]
    shared = heads // groups
    blocks = pl.cdiv(capacity, BLOCK)
    part_blocks = pl.cdiv(blocks, pl.cdiv(PROGRAMS, slots * groups))
    parts = pl.cdiv(blocks, part_blocks)

    def whole(array: jax.Array) -> pl.BlockSpec:
        return pl.BlockSpec(array.shape, lambda *_: (0,) * array.ndim)

    queries = query.reshape(slots, groups, shared, head_dim)
    # A slot without a new token reads one entry: its result is finite, and dropped.
    filled = jnp.where(positions < capacity, positions + 1, 1)
    layers = jnp.full((1,), layer, jnp.int32)
    mixed, highest, total = pl.pallas_call(
        functools.partial(_attend_part, part_blocks, shared),
        grid=(slots, groups, parts),
        in_specs=[
            pl.BlockSpec((None, None, QUERIES, head_dim), lambda s, g, _: (s, g, 0, 0)),
            whole(key),
            whole(value),
            whole(layers),
            whole(filled),
        ],
        out_specs=[
            pl.BlockSpec((None, None, None, QUERIES, head_dim), lambda s, g, p: (s, g, p, 0, 0)),
            pl.BlockSpec((None, None, None, QUERIES), lambda s, g, p: (s, g, p, 0)),
            pl.BlockSpec((None, None, None, QUERIES), lambda s, g, p: (s, g, p, 0)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((slots, groups, parts, shared, head_dim), jnp.float32),
            jax.ShapeDtypeStruct((slots, groups, parts, shared), jnp.float32),
            jax.ShapeDtypeStruct((slots, groups, parts, shared), jnp.float32),
        ],
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=STAGES),
        interpret=interpret,
        name="decode_attention",
    )(queries, key, value, layers, filled)
    # Part 0 has the first entry, which every query sees: the maximum is a real score.
    weights = jnp.exp(highest - highest.max(axis=2, keepdims=True))
    joined = (mixed * weights[..., None]).sum(axis=2) / (total * weights).sum(axis=2)[..., None]
    return joined.reshape(slots, heads, head_dim).astype(query.dtype)


def _attend_part(
    part_blocks: int,
    shared: int,
    query_ref: Any,
    key_ref: Any,
    value_ref: Any,
    layer_ref: Any,
    filled_ref: Any,
    mixed_ref: Any,
    highest_ref: Any,
    total_ref: Any,
) -> None:
    """Mixes the values of one part; gives its softmax sums."""
    slot, group, part = (pl.program_id(axis) for axis in range(3))
    layer = layer_ref[0]
    filled = filled_ref[slot]
    head_dim = query_ref.shape[-1]
    is_query = jnp.arange(QUERIES) < shared
    query = triton.load(query_ref, mask=is_query[:, None], other=0.0)
    first = part * part_blocks

    def read(ref: Any, start: jax.Array, visible: jax.Array) -> jax.Array:
        entries = ref.at[layer, slot, group, pl.ds(start, BLOCK), :]
        return triton.load(entries, mask=visible[:, None], other=0.0)

    def add_block(
        index: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        mixed, highest, total = carry
        start = index * BLOCK
        visible = start + jnp.arange(BLOCK) < filled
        scores = triton.dot(query, read(key_ref, start, visible).T) * head_dim**-0.5
        scores = jnp.where(visible[None], scores, MASKED)
        new_highest = jnp.maximum(highest, scores.max(axis=-1))
        probs = jnp.exp(scores - new_highest[:, None])
        decay = jnp.exp(highest - new_highest)
        added = triton.dot(probs.astype(query.dtype), read(value_ref, start, visible))
        return mixed * decay[:, None] + added, new_highest, total * decay + probs.sum(axis=-1)

    last = jnp.minimum(first + part_blocks, pl.cdiv(filled, BLOCK))
    empty = (
        jnp.zeros((QUERIES, head_dim), jnp.float32),
        jnp.full((QUERIES,), MASKED, jnp.float32),
        jnp.zeros((QUERIES,), jnp.float32),
    )
    mixed, highest, total = jax.lax.fori_loop(first, last, add_block, empty)
    triton.store(mixed_ref, mixed, mask=is_query[:, None])
    triton.store(highest_ref, highest, mask=is_query)
    triton.store(total_ref, total, mask=is_query)
