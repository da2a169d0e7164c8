"""Attention of packed rows and of the cache; the kernel is chosen here.

All kernels: grouped queries (H query heads share G key/value heads, without copies of them), causal, within segments,
softmax in float32.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from gigpo_jax.models.cache import as_numbers, in_order

BLOCK = 256  # entries of the cache that are read together, at most
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)  # finite: a row with nothing to attend to stays free of NaN
QUARTERS = 192  # fewer float32 queries of a row or band stay together: published runs keep their last digits
MIXED = "attention"  # the name of its result, and of a kernel's softmax statistics, for `jax.checkpoint`
SPLASH_BLOCKS = (512, 256, 128)  # tokens of a tile: the largest that divides the row


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segment_ids: jax.Array,
    *,
    max_segment: int | None = None,
    kernels: str | None = None,
) -> jax.Array:
    """Causal self-attention of packed rows, by cuDNN, by splash attention or by plain XLA.

    Args:
      query: [B, T, H, K] in the compute dtype, rotary applied.
      key: [B, T, G, K], G divides H; query head h reads key head h // (H // G).
      value: [B, T, G, K].
      segment_ids: [B, T] i32; a position attends to itself and earlier positions of its segment. Segments count from 1
        and are at most `segment_limit`; 0, padding, comes last.
      max_segment: limit of a segment's length, tokens. In rows of at least three times this length the XLA kernel costs
        T x max_segment, not T x T. None: T.
      kernels: as from `kernels_for`, for the device that this is compiled for; None: `jax.default_backend`.

    Returns:
      [B, T, H, K] in the dtype of `query`.
    """
    kernels = kernels or jax.default_backend()
    if kernels == "hopper" and _fits_cudnn(query):
        return _packed(query, key, value, segment_ids)
    if kernels == "gpu" and _fits_cudnn(query):
        # With is_causal beside the mask the kernel skips the products above the diagonal.
        same = (segment_ids[:, :, None] == segment_ids[:, None, :])[:, None]
        return jax.nn.dot_product_attention(query, key, value, mask=same, is_causal=True, implementation="cudnn")
    if kernels == "tpu" and _fits_splash(query):
        return splash(query, key, value, segment_ids, max_segment)
    length = query.shape[1]
    window = min(max_segment or length, length)
    if 3 * window <= length:
        return checkpoint_name(_banded(query, key, value, segment_ids, window), MIXED)
    return checkpoint_name(_plain(query, key, value, causal_segment_mask(segment_ids), window), MIXED)


def kept_attention(primitive: Any, *_: Any, **params: Any) -> bool:
    """The policy of `jax.checkpoint` that keeps what the backward pass needs of attention; cuDNN's has no names."""
    return params.get("name") == MIXED or primitive.name == "dot_product_attention_fwd_wrapper"


def kernels_for(device: jax.Device) -> str:
    """Which kernels run on a device: "cpu", "tpu", "gpu", or "hopper" for GPUs on which cuDNN takes packed segments."""
    capability = getattr(device, "compute_capability", None)
    hopper = device.platform == "gpu" and capability is not None and float(capability) >= 9
    return "hopper" if hopper else device.platform


def causal_segment_mask(segment_ids: jax.Array) -> jax.Array:
    """[B, T, T] bool: may position t (second axis) see position s (third axis)?"""
    length = segment_ids.shape[1]
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    return same & jnp.tril(jnp.ones((length, length), bool))


def cached_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, layer: jax.Array | int, positions: jax.Array
) -> jax.Array:
    """Attention of one new token per slot over the slot's cache, the token included.

    A cache longer than `BLOCK` is read only as far as the longest slot is filled.

    Args:
      query: [S, H, K] in the compute dtype, rotary applied.
      key: [L, S, G, C, K] the cache, in this layer already holding the new token.
      value: [L, S, G, C, K].
      layer: the layer.
      positions: [S] i32 index of the new token; later entries of the cache are masked. C or more: a slot without one.

    Returns:
      [S, H, K] in the dtype of `query`.
    """
    if key.shape[3] > BLOCK:
        return chunk_attention(query[:, None], key, value, layer, None, positions[:, None])[:, 0]
    key, value = (as_numbers(store[layer], query.dtype) for store in (key, value))
    slots, heads, head_dim = query.shape
    groups, length = key.shape[1:3]
    query = query.reshape(slots, groups, heads // groups, head_dim)
    scores = jnp.einsum("sgrk,sgck->sgrc", query, key, preferred_element_type=jnp.float32)
    seen = jnp.arange(length) <= positions[:, None]
    probs = jax.nn.softmax(jnp.where(seen[:, None, None], scores * head_dim**-0.5, MASKED), axis=-1)
    out = jnp.einsum("sgrc,sgck->sgrk", probs.astype(query.dtype), value, preferred_element_type=jnp.float32)
    return out.reshape(slots, heads, head_dim).astype(query.dtype)


def chunk_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    layer: jax.Array | int,
    slots: jax.Array | None,
    positions: jax.Array,
) -> jax.Array:
    """Attention of chunks of sequences over the cache of their slots, which already holds them.

    It goes over blocks of the cache up to the last position, with the maximum and the sum of the softmax so far (arXiv
    2205.14135, algorithm 1). Further blocks would not change a bit: a result does not depend on other rows.

    Args:
      query: [B, T, H, K] in the compute dtype, rotary applied.
      key: [L, S, G, C, K] the cache.
      value: [L, S, G, C, K].
      layer: the layer.
      slots: [B] i32, the slot of each row; None: row b is in slot b.
      positions: [B, T] i32, indices in the slot; later entries are masked. C or more: not part of a chunk.

    Returns:
      [B, T, H, K] in the dtype of `query`.
    """
    rows, length, heads, head_dim = query.shape
    groups, capacity = key.shape[2:4]
    even = -(-capacity // -(-capacity // BLOCK))  # equal blocks, as few as needed
    block = min(-(-even // 32) * 32, capacity)
    query = query.reshape(rows, length, groups, heads // groups, head_dim)

    def read(store: jax.Array, start: jax.Array) -> jax.Array:
        # One slice: XLA would take a slice of the layer alone out of the loop, and copy the layer.
        part = jax.lax.dynamic_slice(store, (layer, 0, 0, start, 0), (1, *store.shape[1:3], block, head_dim))
        part = in_order(part)[0]
        return as_numbers(part if slots is None else part.at[slots].get(mode="clip"), query.dtype)

    def body(index: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        out, highest, total = carry
        start = jnp.minimum(index * block, capacity - block)  # the last block may overlap the one before it
        at = start + jnp.arange(block)
        seen = (at <= positions[..., None]) & (at >= index * block)
        scores = jnp.einsum("btgrk,bgck->bgtrc", query, read(key, start), preferred_element_type=jnp.float32)
        scores = jnp.where(seen[:, None, :, None], scores * head_dim**-0.5, MASKED)
        higher = jnp.maximum(highest, jnp.max(scores, axis=-1))
        probs, fade = jnp.exp(scores - higher[..., None]), jnp.exp(highest - higher)
        mixed = jnp.einsum(
            "bgtrc,bgck->bgtrk", probs.astype(query.dtype), read(value, start), preferred_element_type=jnp.float32
        )
        return out * fade[..., None] + mixed, higher, total * fade + jnp.sum(probs, axis=-1)

    filled = jnp.max(jnp.where(positions < capacity, positions, 0)) + 1
    shape = (rows, groups, length, heads // groups)
    start = (jnp.zeros((*shape, head_dim)), jnp.full(shape, MASKED), jnp.zeros(shape))
    out, _, total = jax.lax.fori_loop(0, (filled + block - 1) // block, body, start)
    return jnp.swapaxes(out / total[..., None], 1, 2).reshape(rows, length, heads, head_dim).astype(query.dtype)


def _fits_cudnn(query: jax.Array) -> bool:
    half = query.dtype in (jnp.bfloat16, jnp.float16)
    length, head_dim = query.shape[1], query.shape[-1]
    return half and head_dim % 8 == 0 and head_dim <= 128 and length % 2 == 0


def segment_limit(length: int) -> int:
    """How many segments a packed row of `length` tokens may have: cuDNN starts work for each that there could be."""
    return max(32, length // 32)


def segment_extents(segment_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where segments lie, as cuDNN takes it: their lengths [B, M] and first positions [B, M + 1], i32, -1 for none.

    The padding of `segment_ids` [B, T] is the last of them, so that every position is in one; M = `segment_limit` + 1.
    """
    limit = segment_limit(segment_ids.shape[1]) + 1
    segments = jnp.where(segment_ids == 0, limit, segment_ids)
    lengths = jnp.sum(segments[:, None] == jnp.arange(1, limit + 1)[:, None], axis=-1, dtype=jnp.int32)
    ends = jnp.cumsum(lengths, axis=1)
    offsets = jnp.where(lengths > 0, ends - lengths, -1)
    return jnp.where(lengths > 0, lengths, -1), jnp.pad(offsets, ((0, 0), (0, 1)), constant_values=-1)


def _packed(query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """cuDNN's attention of segments: a mask would be an array of T x T, and have a gradient that nobody reads."""
    # jax.nn.dot_product_attention has no offsets, hence the private module.
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    lengths, offsets = segment_extents(segment_ids)
    return cudnn.dot_product_attention(
        query,
        key,
        value,
        q_seqlen=lengths,
        kv_seqlen=lengths,
        q_offsets=offsets,
        kv_offsets=offsets,
        scale=query.shape[-1] ** -0.5,
        mask_type=cudnn.MaskType.PADDING_CAUSAL,
    )


def _fits_splash(query: jax.Array) -> bool:
    length, head_dim = query.shape[1], query.shape[-1]
    return length % SPLASH_BLOCKS[-1] == 0 and head_dim % 64 == 0


def splash(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segment_ids: jax.Array,
    max_segment: int | None = None,
    *,
    interpret: bool = False,
) -> jax.Array:
    """jax's splash attention, a Pallas kernel for TPUs: no array of T x T, and no products beyond `max_segment` back.

    Arguments and result as for `attention`. With `interpret` it runs on any platform, slowly.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention  # a second to import, of use on TPUs only

    length, heads, head_dim = query.shape[1:]
    block = next(size for size in SPLASH_BLOCKS if length % size == 0)
    sizes = splash_attention.BlockSizes(
        block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, block_q_dq=block, block_kv_dq=block
    )
    window = min(max_segment or length, length) - 1
    mask = splash_attention.MultiHeadMask([splash_attention.LocalMask((length, length), (window, 0), 0)] * heads)
    kernel = splash_attention.make_splash_mha_single_device(
        mask, block_sizes=sizes, residual_checkpoint_name=MIXED, interpret=interpret
    )
    scaled = (query.astype(jnp.float32) * head_dim**-0.5).astype(query.dtype)
    by_head = (x.swapaxes(1, 2) for x in (scaled, key, value))
    return jax.vmap(kernel)(*by_head, splash_attention.SegmentIds(segment_ids, segment_ids)).swapaxes(1, 2)


def _plain(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, window: int) -> jax.Array:
    """Attention with a mask; from `QUARTERS` queries on in quarters, each with only the keys that its queries may see.

    Args:
      query: [B, T, H, K].
      key: [B, S, G, K]; the last query is where the last key is.
      value: [B, S, G, K].
      mask: [B, T, S] bool.
      window: how many keys a query may look back over, its own included.

    Returns:
      [B, T, H, K] in the dtype of `query`.
    """
    length = query.shape[1]
    if length < QUARTERS and query.dtype == jnp.float32:
        return jnp.einsum("bgtrs,bsgk->btgrk", _probabilities(query, key, mask), value).reshape(query.shape)
    before, quarter, parts = key.shape[1] - length, -(-length // 4), []
    for start in range(0, length, quarter):
        end = min(start + quarter, length)
        queries, keys = slice(start, end), slice(max(before + start + 1 - window, 0), before + end)
        probs = _probabilities(query[:, queries], key[:, keys], mask[:, queries, keys])
        # [B, G, T, R, K] is the order of the batched product: for another one XLA transposes the probabilities.
        out = jnp.einsum("bgtrs,bsgk->bgtrk", probs, value[:, keys], preferred_element_type=jnp.float32)
        parts.append(jnp.swapaxes(out, 1, 2).astype(query.dtype))
    return jnp.concatenate(parts, axis=1).reshape(query.shape)


def _banded(query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array, max_segment: int) -> jax.Array:
    """Cuts rows into blocks of `max_segment`: the keys of a query are then in its block or the one before."""
    batch, length = segment_ids.shape
    blocks = -(-length // max_segment)

    def cut(x: jax.Array, before: bool) -> jax.Array:
        x = jnp.pad(x, [(0, 0), (0, blocks * max_segment - length), *[(0, 0)] * (x.ndim - 2)])
        x = x.reshape(batch, blocks, max_segment, *x.shape[2:])
        if before:
            x = jnp.concatenate([jnp.pad(x[:, :-1], [(0, 0), (1, 0), *[(0, 0)] * (x.ndim - 2)]), x], axis=2)
        return x.reshape(batch * blocks, *x.shape[2:])

    # The block before the first one has segment id 0, which no real segment has.
    same = cut(segment_ids, False)[:, :, None] == cut(segment_ids, True)[:, None, :]
    earlier = jnp.arange(2 * max_segment) <= max_segment + jnp.arange(max_segment)[:, None]
    out = _plain(cut(query, False), cut(key, True), cut(value, True), same & earlier, max_segment)
    return out.reshape(batch, blocks * max_segment, *query.shape[2:])[:, :length]


def _probabilities(query: jax.Array, key: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax weights of keys [B, S, G, K] for queries [B, T, H, K]: [B, G, T, H / G, S] in the dtype of `query`."""
    batch, length, heads, head_dim = query.shape
    groups = key.shape[2]
    query = query.reshape(batch, length, groups, heads // groups, head_dim)
    # [B, G, T, R, S] is the order a batched matrix product leaves: no transpose of the scores.
    scores = jnp.einsum("btgrk,bsgk->bgtrs", query, key, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, :, None], scores * head_dim**-0.5, MASKED)
    return jax.nn.softmax(scores, axis=-1).astype(query.dtype)
