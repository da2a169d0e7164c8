"""Attention kernels of accelerators: cuDNN on GPUs, splash attention on TPUs."""

import functools

import jax
import jax.numpy as jnp

from gigpo_jax.models.masks import MIXED, causal_segment_mask, segment_limit

SPLASH_BLOCKS = (512, 256, 128)  # tokens of a tile: the largest that divides the row


def _fits_cudnn(query: jax.Array) -> bool:
    # Conditions of jax's cuDNN calls before Hopper. The mask is passed as a bias there, for which
    # gradients need an even length.
    half = query.dtype in (jnp.bfloat16, jnp.float16)
    _, length, _, head_dim = query.shape
    return half and head_dim % 8 == 0 and head_dim <= 128 and length % 2 == 0


def apply_kernel(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segment_ids: jax.Array,
    max_segment: int | None,
    window: int,
    kernels: str,
) -> jax.Array | None:
    """Computes `attention.attention` with a kernel; None if no kernel fits these arrays."""
    if kernels == "tpu" and _fits_splash(query):
        # Fewer tokens back than a segment has are the mask itself.
        longest = min(max_segment or window, window) if window else max_segment
        return splash_attention(query, key, value, segment_ids, longest)
    if window:
        return None
    if kernels == "hopper" and segment_ids.ndim == 2 and _fits_cudnn(query):
        return _cudnn_segments(query, key, value, segment_ids)
    if kernels in ("gpu", "hopper") and _fits_cudnn(query):
        # With is_causal beside the mask the kernel skips the products above the diagonal.
        mask = causal_segment_mask(segment_ids)[:, None]
        return jax.nn.dot_product_attention(
            query, key, value, mask=mask, is_causal=True, implementation="cudnn"
        )
    return None


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
    """Computes cuDNN's attention of packed segments, given by their lengths and offsets."""
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
