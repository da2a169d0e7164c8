"""Attention of packed rows and of the cache; the kernel is chosen here.

All kernels: grouped queries (H query heads share G key/value heads, without copies of them),
causal, within segments, softmax in float32.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from gigpo_jax.models.cache import constrain_order, to_compute_dtype

BLOCK = 256  # largest number of cache entries that are read together
# Finite: a row with nothing to attend to stays free of NaN.
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)
# Rows or bands with fewer float32 queries stay whole: cutting them would change the last digits of
# published runs.
QUARTERS = 192
# Name of the result, and of a kernel's softmax statistics, for `jax.checkpoint`.
MIXED = "attention"
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
    """Computes causal self-attention of packed rows.

    By cuDNN, splash attention or plain XLA.

    Args:
      query: [B, T, H, K] in the compute dtype, rotary applied.
      key: [B, T, G, K], G divides H; query head h reads key head h // (H // G).
      value: [B, T, G, K].
      segment_ids: [B, T] i32; a position attends to itself and earlier positions of its segment.
        Segments count from 1 and are at most `segment_limit`; 0, padding, comes last. [B, 2, T]: a
        segment is a tree of texts. The second array has the index behind the last position that
        sees a position: its descendants lie between.
      max_segment: longest segment, tokens. In rows of at least three times this length the XLA
        kernel costs T x max_segment, not T x T. None: T.
      kernels: result of `kernels_for` for the device that this is compiled for; None:
        `jax.default_backend`.

    Returns:
      [B, T, H, K] in the dtype of `query`.
    """
    kernels = kernels or jax.default_backend()
    if kernels == "hopper" and segment_ids.ndim == 2 and _fits_cudnn(query):
        return _cudnn_segments(query, key, value, segment_ids)
    if kernels in ("gpu", "hopper") and _fits_cudnn(query):
        # With is_causal beside the mask the kernel skips the products above the diagonal.
        mask = causal_segment_mask(segment_ids)[:, None]
        return jax.nn.dot_product_attention(
            query, key, value, mask=mask, is_causal=True, implementation="cudnn"
        )
    if kernels == "tpu" and _fits_splash(query):
        return splash_attention(query, key, value, segment_ids, max_segment)
    length = query.shape[1]
    window = min(max_segment or length, length)
    if reads_bands(length, window):
        mixed = _banded_attention(query, key, value, segment_ids, window)
    else:
        mixed = _masked_attention(query, key, value, causal_segment_mask(segment_ids), window)
    return checkpoint_name(mixed, MIXED)


def reads_bands(length: int, window: int) -> bool:
    """Tells whether XLA's kernel cuts rows into bands.

    `length` is the number of tokens of a row, `window` that of a band.
    """
    # In bands a query has the keys of two windows, in whole rows at most those of the row: with
    # fewer than three windows bands save little.
    return 3 * window <= length


def saves_attention(primitive: Any, *_: Any, **params: Any) -> bool:
    """Tells `jax.checkpoint` to save the results of attention.

    A policy; the backward pass reads the results.
    """
    # Results of cuDNN's kernel have no names, so its primitive is compared.
    return params.get("name") == MIXED or primitive.name == "dot_product_attention_fwd_wrapper"


def kernels_for(device: jax.Device) -> str:
    """Names a device's kernels: "cpu", "tpu", "gpu" or "hopper".

    On "hopper" (compute capability 9 or more) cuDNN takes packed segments.
    """
    # A text such as "9.0" on NVIDIA GPUs; other devices may lack it.
    capability = getattr(device, "compute_capability", None)
    if device.platform == "gpu" and capability is not None and float(capability) >= 9:
        return "hopper"
    return device.platform


def causal_segment_mask(segment_ids: jax.Array) -> jax.Array:
    """Returns which positions each position may see.

    [B, T, T] bool: may position t (second axis) see position s (third axis)?
    """
    length = segment_ids.shape[-1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    if segment_ids.ndim == 3:
        # Padding, which ends nowhere, sees itself: no softmax is over an empty set.
        descends = jnp.arange(length)[:, None] < segment_ids[:, 1, None]
        return (descends & causal) | jnp.eye(length, dtype=bool)
    # Padding, segment 0, may see padding: no softmax is over an empty set.
    same_segment = segment_ids[:, :, None] == segment_ids[:, None, :]
    return same_segment & causal


def cached_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    layer: jax.Array | int,
    positions: jax.Array,
    kernels: str | None = None,
) -> jax.Array:
    """Computes attention of one new token per slot.

    It goes over the slot's cache, the token included. A cache longer than `BLOCK` is read only as
    far as the longest slot is filled.

    Args:
      query: [S, H, K] in the compute dtype, rotary applied.
      key: [L, S, G, C, K] the cache, in this layer already holding the new token.
      value: [L, S, G, C, K].
      layer: index of the layer.
      positions: [S] i32 index of the new token; later entries of the cache are masked. C or more: a
        slot without a new token.
      kernels: result of `kernels_for` for the device that this is compiled for; None: plain XLA.

    Returns:
      [S, H, K] in the dtype of `query`.
    """
    if kernels in ("gpu", "hopper"):
        # Takes a second to import, and only GPUs need it.
        from gigpo_jax.models import decode_kernel

        if decode_kernel.fits(query, key):
            return decode_kernel.decode_attention(query, key, value, layer, positions)
    # A loop over blocks reads only as far as the slots are filled. A cache of one block needs none.
    if key.shape[3] > BLOCK:
        return chunk_attention(query[:, None], key, value, layer, None, positions[:, None])[:, 0]
    key = to_compute_dtype(key[layer], query.dtype)
    value = to_compute_dtype(value[layer], query.dtype)
    slots, heads, head_dim = query.shape
    groups, length = key.shape[1:3]
    # [S, G, R, K]: the R query heads that share a key head are the rows of one product.
    query = query.reshape(slots, groups, heads // groups, head_dim)
    scores = jnp.einsum("sgrk,sgck->sgrc", query, key, preferred_element_type=jnp.float32)
    # [S, 1, 1, C]. A slot without a new token sees all entries: its result is finite, and dropped.
    visible = (jnp.arange(length) <= positions[:, None])[:, None, None]
    probs = jax.nn.softmax(jnp.where(visible, scores * head_dim**-0.5, MASKED), axis=-1)
    out = jnp.einsum(
        "sgrc,sgck->sgrk", probs.astype(query.dtype), value, preferred_element_type=jnp.float32
    )
    return out.reshape(slots, heads, head_dim).astype(query.dtype)


def chunk_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    layer: jax.Array | int,
    slots: jax.Array | None,
    positions: jax.Array,
) -> jax.Array:
    """Computes attention of chunks of sequences over their slots' cache.

    The cache holds the chunks too. It goes over blocks of the cache up to the last position, with
    the running maximum and sum of the softmax (arXiv 2205.14135, algorithm 1). Further blocks would
    not change a bit: a result does not depend on other rows.

    Args:
      query: [B, T, H, K] in the compute dtype, rotary applied.
      key: [L, S, G, C, K] the cache.
      value: [L, S, G, C, K].
      layer: index of the layer.
      slots: [B] i32, the slot of each row; None: row b is in slot b.
      positions: [B, T] i32, indices in the slot; later entries are masked. C or more: padding.

    Returns:
      [B, T, H, K] in the dtype of `query`.
    """
    rows, length, heads, head_dim = query.shape
    groups, capacity = key.shape[2:4]
    block = _block_size(capacity)
    query = query.reshape(rows, length, groups, heads // groups, head_dim)

    def read_block(store: jax.Array, start: jax.Array) -> jax.Array:
        # One slice: XLA would take a slice of the layer alone out of the loop, and copy the layer.
        sizes = (1, *store.shape[1:3], block, head_dim)
        entries = jax.lax.dynamic_slice(store, (layer, 0, 0, start, 0), sizes)
        entries = constrain_order(entries)[0]
        # A row of a slot that does not exist reads the last one: its result is dropped.
        if slots is not None:
            entries = entries.at[slots].get(mode="clip")
        return to_compute_dtype(entries, query.dtype)

    def add_block(index: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        out, highest, total = carry
        # The last block may overlap the one before it; entries count in their first block.
        start = jnp.minimum(index * block, capacity - block)
        entry = start + jnp.arange(block)
        visible = (entry <= positions[..., None]) & (entry >= index * block)
        scores = jnp.einsum(
            "btgrk,bgck->bgtrc", query, read_block(key, start), preferred_element_type=jnp.float32
        )
        scores = jnp.where(visible[:, None, :, None], scores * head_dim**-0.5, MASKED)
        # A block that is masked for a query changes nothing: `decay` is 1, and exp(MASKED -
        # highest) is 0. Entry 0 is visible to every query, so the maximum is a real score from
        # block 0 on.
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
    num_blocks = (filled + block - 1) // block
    shape = (rows, groups, length, heads // groups)
    # float32 in every compute dtype: each block multiplies the sums by `decay` once more.
    carry = (jnp.zeros((*shape, head_dim)), jnp.full(shape, MASKED), jnp.zeros(shape))
    out, _, total = jax.lax.fori_loop(0, num_blocks, add_block, carry)
    out = jnp.swapaxes(out / total[..., None], 1, 2)
    return out.reshape(rows, length, heads, head_dim).astype(query.dtype)


def _block_size(capacity: int) -> int:
    """Returns the number of entries of a block.

    Blocks are equal, at most `BLOCK`, as few as needed, in multiples of 32.
    """
    num_blocks = -(-capacity // BLOCK)
    even_size = -(-capacity // num_blocks)
    return min(-(-even_size // 32) * 32, capacity)


def _fits_cudnn(query: jax.Array) -> bool:
    # Conditions of jax's cuDNN calls before Hopper. The mask is passed as a bias there, for which
    # gradients need an even length.
    half = query.dtype in (jnp.bfloat16, jnp.float16)
    _, length, _, head_dim = query.shape
    return half and head_dim % 8 == 0 and head_dim <= 128 and length % 2 == 0


def segment_limit(length: int) -> int:
    """Returns the largest number of segments in a packed row.

    `length` is the row's number of tokens.
    """
    # cuDNN's backward pass works on, and keeps in float32, a whole row of queries for every segment
    # that there could be. With one for every 32 tokens this took 22% of an update on an H200, and
    # 26 GB.
    return max(32, length // 512)


def segment_extents(segment_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the segments' lengths and first positions for cuDNN.

    They are [B, M] and [B, M + 1], i32, -1 for none. The padding of `segment_ids` [B, T] is the
    last segment, so that every position is in one; M = `segment_limit` + 1.
    """
    limit = segment_limit(segment_ids.shape[1]) + 1
    segments = jnp.where(segment_ids == 0, limit, segment_ids)
    # [M, 1] against [B, 1, T]: the lengths are counts of equal ids, [B, M].
    numbers = jnp.arange(1, limit + 1)[:, None]
    lengths = jnp.sum(segments[:, None] == numbers, axis=-1, dtype=jnp.int32)
    ends = jnp.cumsum(lengths, axis=1)
    offsets = jnp.where(lengths > 0, ends - lengths, -1)
    padded_offsets = jnp.pad(offsets, ((0, 0), (0, 1)), constant_values=-1)
    return jnp.where(lengths > 0, lengths, -1), padded_offsets


def _cudnn_segments(
    query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array
) -> jax.Array:
    """Computes cuDNN's attention of packed segments.

    The segments are given by their lengths and offsets.
    """
    # A mask, as trees have it, would be an array of T x T, with a gradient that nobody reads.
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
    # Tiles of the kernel must be multiples of 128 tokens.
    _, length, _, head_dim = query.shape
    return length % SPLASH_BLOCKS[-1] == 0 and head_dim % 64 == 0


def splash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segment_ids: jax.Array,
    max_segment: int | None = None,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Splash attention of jax, a Pallas kernel for TPUs.

    It has no products beyond `max_segment` back, and no array of T x T but the mask of trees.
    Arguments and result as for `attention`. With `interpret` it runs on any platform, slowly.
    """
    # Takes a second to import, and only TPUs need it.
    from jax.experimental.pallas.ops.tpu import splash_attention as pallas_splash

    length, heads, head_dim = query.shape[1:]
    block = next(size for size in SPLASH_BLOCKS if length % size == 0)
    sizes = pallas_splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    make_kernel = functools.partial(
        pallas_splash.make_splash_mha_single_device,
        block_sizes=sizes,
        residual_checkpoint_name=MIXED,
        interpret=interpret,
    )
    # The kernel does not scale its scores. In float32, so that the product is rounded once.
    scaled_query = (query.astype(jnp.float32) * head_dim**-0.5).astype(query.dtype)
    head_major = [x.swapaxes(1, 2) for x in (scaled_query, key, value)]
    if segment_ids.ndim == 3:
        masks = causal_segment_mask(segment_ids)[:, None]

        def attend(mask: jax.Array, *row: jax.Array) -> jax.Array:
            # The mask is an array, one for all heads; the kernel skips its empty tiles.
            kernel = make_kernel(mask)
            # jax makes an array of this flag, and then cannot read it under `jax.jit`.
            kernel.fwd_mask_info = kernel.fwd_mask_info._replace(is_dynamic_mask=True)
            return kernel(*row)

        mixed = jax.vmap(attend)(masks, *head_major)
    else:
        window = min(max_segment or length, length) - 1
        # 0 tokens ahead makes it causal. The query itself is not counted in the tokens back, hence
        # the -1 above.
        mask = pallas_splash.LocalMask((length, length), (window, 0), 0)
        kernel = make_kernel(pallas_splash.MultiHeadMask([mask] * heads))
        segments = pallas_splash.SegmentIds(segment_ids, segment_ids)
        mixed = jax.vmap(kernel)(*head_major, segments)
    return mixed.swapaxes(1, 2)


def _masked_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, window: int
) -> jax.Array:
    """Attention with a mask, in quarters of the queries.

    A quarter computes products only with the keys that its queries may see.

    Args:
      query: [B, T, H, K].
      key: [B, S, G, K]; the last query and the last key are the same token.
      value: [B, S, G, K].
      mask: [B, T, S] bool.
      window: largest number of visible keys of a query, its own included.

    Returns:
      [B, T, H, K] in the dtype of `query`.
    """
    length = query.shape[1]
    if length < QUARTERS and query.dtype == jnp.float32:
        probs = _attention_weights(query, key, mask)
        return jnp.einsum("bgtrs,bsgk->btgrk", probs, value).reshape(query.shape)
    # In bands the keys begin one block before the queries, in whole rows with them.
    num_earlier_keys = key.shape[1] - length
    quarter = -(-length // 4)
    results = []
    for start in range(0, length, quarter):
        end = min(start + quarter, length)
        queries = slice(start, end)
        # The first query of the quarter looks back furthest; `mask` restricts the others.
        first_key = max(num_earlier_keys + start + 1 - window, 0)
        keys = slice(first_key, num_earlier_keys + end)
        probs = _attention_weights(query[:, queries], key[:, keys], mask[:, queries, keys])
        # [B, G, T, R, K] is the order of the batched product: for another one XLA transposes the
        # probabilities.
        out = jnp.einsum(
            "bgtrs,bsgk->bgtrk", probs, value[:, keys], preferred_element_type=jnp.float32
        )
        results.append(jnp.swapaxes(out, 1, 2).astype(query.dtype))
    return jnp.concatenate(results, axis=1).reshape(query.shape)


def _banded_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array, max_segment: int
) -> jax.Array:
    """Attention of rows cut into blocks of `max_segment` tokens.

    The keys of a query are then in its block or the previous one.
    """
    batch, length = query.shape[:2]
    num_blocks = -(-length // max_segment)

    def split_blocks(x: jax.Array) -> jax.Array:
        # Padded positions have segment 0. Their results are cut off at the end.
        padding = [(0, 0), (0, num_blocks * max_segment - length), *[(0, 0)] * (x.ndim - 2)]
        return jnp.pad(x, padding).reshape(batch, num_blocks, max_segment, *x.shape[2:])

    def query_blocks(x: jax.Array) -> jax.Array:
        return split_blocks(x).reshape(batch * num_blocks, max_segment, *x.shape[2:])

    def key_blocks(x: jax.Array) -> jax.Array:
        blocks = split_blocks(x)
        padding = [(0, 0), (1, 0), *[(0, 0)] * (blocks.ndim - 2)]
        # The first block gets zeros as its previous one.
        previous_blocks = jnp.pad(blocks[:, :-1], padding)
        pairs = jnp.concatenate([previous_blocks, blocks], axis=2)
        return pairs.reshape(batch * num_blocks, 2 * max_segment, *x.shape[2:])

    # The block before the first one has segment id 0, which no real segment has, and ends at 0.
    if segment_ids.ndim == 3:
        index = jnp.broadcast_to(jnp.arange(length), (batch, length))
        same_segment = query_blocks(index)[:, :, None] < key_blocks(segment_ids[:, 1])[:, None]
    else:
        query_segments = query_blocks(segment_ids)[:, :, None]
        same_segment = query_segments == key_blocks(segment_ids)[:, None, :]
    # The queries are the second half of their pair of blocks.
    query_index = max_segment + jnp.arange(max_segment)[:, None]
    causal = jnp.arange(2 * max_segment) <= query_index
    out = _masked_attention(
        query_blocks(query),
        key_blocks(key),
        key_blocks(value),
        same_segment & causal,
        max_segment,
    )
    return out.reshape(batch, num_blocks * max_segment, *query.shape[2:])[:, :length]


def _attention_weights(query: jax.Array, key: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax weights of keys for queries.

    Args:
      query: [B, T, H, K].
      key: [B, S, G, K].
      mask: [B, T, S] bool.

    Returns:
      [B, G, T, H / G, S] in the dtype of `query`.
    """
    batch, length, heads, head_dim = query.shape
    groups = key.shape[2]
    query = query.reshape(batch, length, groups, heads // groups, head_dim)
    # [B, G, T, R, S] is the order a batched matrix product leaves: no transpose of the scores.
    scores = jnp.einsum("btgrk,bsgk->bgtrs", query, key, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, :, None], scores * head_dim**-0.5, MASKED)
    return jax.nn.softmax(scores, axis=-1).astype(query.dtype)
