"""Attention of packed rows and of the cache; the kernel is chosen here.

All kernels: grouped queries (H query heads share G key/value heads, without copies of them),
causal, within segments, softmax in float32.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from gigpo_jax.models.cache import to_compute_dtype
from gigpo_jax.models.masks import BLOCK, MASKED, MIXED, causal_segment_mask, visible_entries

# Rows or bands with fewer float32 queries stay whole: cutting them would change the last digits of
# published runs.
QUARTERS = 192


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segment_ids: jax.Array,
    *,
    max_segment: int | None = None,
    window: int = 0,
    kernels: str | None = None,
) -> jax.Array:
    """Computes causal self-attention of packed rows, by cuDNN, splash attention or plain XLA.

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
      window: positions that a position sees, itself included; 0: all of its segment. Not of trees.
      kernels: result of `kernels_for` for the device that this is compiled for; None:
        `jax.default_backend`.

    Returns:
      [B, T, H, K] in the dtype of `query`.
    """
    kernels = kernels or jax.default_backend()
    if kernels != "cpu":
        from gigpo_jax.models.attention_kernels import apply_kernel

        mixed = apply_kernel(query, key, value, segment_ids, max_segment, window, kernels)
        if mixed is not None:
            return mixed
    length = query.shape[1]
    band = min(max_segment or length, window or length, length)
    if reads_bands(length, band):
        mixed = _banded_attention(query, key, value, segment_ids, band, window, kernels)
    else:
        mask = causal_segment_mask(segment_ids, window)
        mixed = _masked_attention(query, key, value, mask, band, kernels)
    return checkpoint_name(mixed, MIXED)


def reads_bands(length: int, band: int) -> bool:
    """Returns whether XLA's kernel cuts rows of `length` tokens into bands of `band` tokens."""
    # In bands a query has the keys of two bands, in whole rows at most the row's: with fewer than
    # three bands in a row they save little.
    return 3 * band <= length


def saves_attention(primitive: Any, *_: Any, **params: Any) -> bool:
    """Tells `jax.checkpoint`, as a policy, to save results of attention for the backward pass."""
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


def cached_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    layer: jax.Array | int,
    positions: jax.Array,
    kernels: str | None = None,
    window: int = 0,
) -> jax.Array:
    """Computes attention of one new token per slot over the slot's cache, the token included.

    A cache longer than `BLOCK` is read only as far as the longest slot is filled.

    Args:
      query: [S, H, K] in the compute dtype, rotary applied.
      key: [L, S, G, C, K] the cache, in this layer already holding the new token.
      value: [L, S, G, C, K].
      layer: index of the layer.
      positions: [S] i32 index of the new token; later entries of the cache are masked. C or more: a
        slot without a new token.
      kernels: result of `kernels_for` for the device that this is compiled for; None: plain XLA.
      window: tokens that a token sees, its own included, in a `window_cache`; 0: all up to it.

    Returns:
      [S, H, K] in the dtype of `query`.
    """
    # A loop over blocks reads only as far as the slots are filled. A cache of one block needs none.
    if key.shape[3] > BLOCK or kernels in ("gpu", "hopper"):
        from gigpo_jax.models.chunk_attention import chunk_attention

        places = positions[:, None]
        tokens = query[:, None]
        return chunk_attention(tokens, key, value, layer, None, places, window, kernels)[:, 0]
    key = to_compute_dtype(key[layer], query.dtype)
    value = to_compute_dtype(value[layer], query.dtype)
    slots, heads, head_dim = query.shape
    groups, length = key.shape[1:3]
    # [S, G, R, K]: the R query heads that share a key head are the rows of one product.
    query = query.reshape(slots, groups, heads // groups, head_dim)
    scores = jnp.einsum("sgrk,sgck->sgrc", query, key, preferred_element_type=jnp.float32)
    # [S, 1, 1, C]. A slot without a new token sees all entries: its result is finite, and dropped.
    visible = visible_entries(jnp.arange(length), positions, length, window)[:, None, None]
    probs = jax.nn.softmax(jnp.where(visible, scores * head_dim**-0.5, MASKED), axis=-1)
    out = jnp.einsum(
        "sgrc,sgck->sgrk", probs.astype(query.dtype), value, preferred_element_type=jnp.float32
    )
    return out.reshape(slots, heads, head_dim).astype(query.dtype)


def _masked_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, band: int, kernels: str
) -> jax.Array:
    """Computes attention [B, T, H, K] with a mask [B, T, S], a quarter of the queries at a time.

    A quarter computes products only with the keys [B, S, G, K] that its queries may see, at most
    `band`. The last query and the last key are the same token.
    """
    length = query.shape[1]
    if length < QUARTERS and query.dtype == jnp.float32:
        probs = _attention_weights(query, key, mask)
        return jnp.einsum("bgtrs,bsgk->btgrk", probs, value).reshape(query.shape)
    # In bands the keys begin one block before the queries, in whole rows with them.
    num_earlier_keys = key.shape[1] - length
    quarter = -(-length // 4)
    # The backward pass would keep the scores of all quarters beside their gradients.
    attend = _attend_part if kernels == "cpu" else jax.checkpoint(_attend_part)
    results = []
    for start in range(0, length, quarter):
        queries = slice(start, min(start + quarter, length))
        # The first query of the quarter looks back furthest; `mask` restricts the others.
        first_key = max(num_earlier_keys + start + 1 - band, 0)
        keys = slice(first_key, num_earlier_keys + queries.stop)
        visible = mask[:, queries, keys]
        results.append(attend(query[:, queries], key[:, keys], value[:, keys], visible))
    return jnp.concatenate(results, axis=1).reshape(query.shape)


def _attend_part(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    probs = _attention_weights(query, key, mask)
    # [B, G, T, R, K] is the order of the batched product: for another one XLA transposes the
    # probabilities.
    out = jnp.einsum("bgtrs,bsgk->bgtrk", probs, value, preferred_element_type=jnp.float32)
    return jnp.swapaxes(out, 1, 2).astype(query.dtype)


def _banded_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segment_ids: jax.Array,
    band: int,
    window: int,
    kernels: str,
) -> jax.Array:
    """Computes attention of rows cut into blocks of `band` tokens.

    The keys of a query are then in its block or the previous one. `window` is as for `attention`.
    """
    batch, length = query.shape[:2]
    num_blocks = -(-length // band)

    def split_blocks(x: jax.Array) -> jax.Array:
        # Padded positions have segment 0. Their results are cut off at the end.
        padding = [(0, 0), (0, num_blocks * band - length), *[(0, 0)] * (x.ndim - 2)]
        return jnp.pad(x, padding).reshape(batch, num_blocks, band, *x.shape[2:])

    def query_blocks(x: jax.Array) -> jax.Array:
        return split_blocks(x).reshape(batch * num_blocks, band, *x.shape[2:])

    def key_blocks(x: jax.Array) -> jax.Array:
        blocks = split_blocks(x)
        padding = [(0, 0), (1, 0), *[(0, 0)] * (blocks.ndim - 2)]
        # The first block gets zeros as its previous one.
        previous_blocks = jnp.pad(blocks[:, :-1], padding)
        pairs = jnp.concatenate([previous_blocks, blocks], axis=2)
        return pairs.reshape(batch * num_blocks, 2 * band, *x.shape[2:])

    # The block before the first one has segment id 0, which no real segment has, and ends at 0.
    if segment_ids.ndim == 3:
        index = jnp.broadcast_to(jnp.arange(length), (batch, length))
        same_segment = query_blocks(index)[:, :, None] < key_blocks(segment_ids[:, 1])[:, None]
    else:
        query_segments = query_blocks(segment_ids)[:, :, None]
        same_segment = query_segments == key_blocks(segment_ids)[:, None, :]
    # The queries are the second half of their pair of blocks.
    query_index = band + jnp.arange(band)[:, None]
    causal = jnp.arange(2 * band) <= query_index
    if window:
        causal &= jnp.arange(2 * band) > query_index - window
    blocks = (query_blocks(query), key_blocks(key), key_blocks(value))
    out = _masked_attention(*blocks, same_segment & causal, band, kernels)
    return out.reshape(batch, num_blocks * band, *query.shape[2:])[:, :length]


def _attention_weights(query: jax.Array, key: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax weights [B, G, T, H / G, S] of keys [B, S, G, K] for queries [B, T, H, K]."""
    batch, length, heads, head_dim = query.shape
    groups = key.shape[2]
    query = query.reshape(batch, length, groups, heads // groups, head_dim)
    # [B, G, T, R, S] is the order a batched matrix product leaves: no transpose of the scores.
    scores = jnp.einsum("btgrk,bsgk->bgtrs", query, key, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, :, None], scores * head_dim**-0.5, MASKED)
    return jax.nn.softmax(scores, axis=-1).astype(query.dtype)
