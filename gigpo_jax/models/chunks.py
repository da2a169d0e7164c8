"""Prefill in chunks: prompts are read piece by piece, after the tokens that slots hold already."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from gigpo_jax.models.cache import KVCache
from gigpo_jax.models.chunk_attention import chunk_attention
from gigpo_jax.models.chunk_cache import write_chunk_routes, write_chunks
from gigpo_jax.models.decoder import apply_final_norm, embed_tokens, score_tokens
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.decoding import run_layers
from gigpo_jax.models.execution import Experts
from gigpo_jax.models.layer import Params, select_last
from gigpo_jax.models.rotary import model_angles
from gigpo_jax.models.window_cache import write_window_tokens

if TYPE_CHECKING:
    from gigpo_jax.models.vision.vision import Features


def extend(
    config: DecoderConfig,
    params: Params,
    cache: KVCache,
    tokens: jax.Array,
    lengths: jax.Array,
    slots: jax.Array,
    starts: jax.Array,
    ends: jax.Array | None = None,
    rotary_positions: jax.Array | None = None,
    images: "Features | None" = None,
    kernels: str | None = None,
    experts: Experts | None = None,
) -> tuple[jax.Array, KVCache]:
    """Runs chunks of prompts and appends them to slots.

    Chunks of one prompt may be rows of the same call. A token's keys, values and logits depend on
    the tokens before it; they do not depend on other rows nor, to the last bit, on how the prompt
    was cut into chunks and calls.

    Args:
      config: model shape.
      params: parameter tree of `decoder.init_params`.
      cache: cache; updated in place if donated.
      tokens: [B, T] i32, each chunk padded on the right.
      lengths: [B] i32, tokens of each chunk without padding.
      slots: [B] i32, the slot of each chunk; a row with S or more is dropped.
      starts: [B] i32, index in the prompt of the chunk's first token.
      ends: [B] i32, slot of a chunk with which its prompt ends, S for others: there the cache gets
        its checkpoint; None: no prompt ends.
      rotary_positions: [3, B, T] i32, as the positions of `decoder.hidden_states`; None: the
        indices.
      images: features of the images in the chunks; None for none.
      kernels: attention kernels, as for `attention.cached_attention`.
      experts: function for the experts.

    Returns:
      The logits [B, V] f32 after the last token of each chunk, and the cache.
    """
    indices = starts[:, None] + jnp.arange(tokens.shape[1])
    # Padding gets an index beyond the cache, which attention ignores.
    capacity = cache.key.shape[3]
    positions = jnp.where(indices < (starts + lengths)[:, None], indices, capacity)

    def attend(
        window: int, index: jax.Array, cache: KVCache, *arrays: jax.Array
    ) -> tuple[jax.Array, KVCache]:
        query, key, value = arrays
        # Written first: rows of this call may be chunks of one prompt, and a later chunk reads the
        # keys of the earlier ones.
        if window:
            cache = write_window_tokens(cache, (key, value), index, slots, positions, capacity)
        else:
            cache = write_chunks(cache, key, value, index, slots, starts)
        stores = (cache.key, cache.value)
        out = chunk_attention(query, *stores, index, slots, positions, window, kernels)
        return out, cache

    def mix(index: jax.Array, cache: KVCache, *arrays: jax.Array) -> tuple[jax.Array, KVCache]:
        from gigpo_jax.models.delta_chunks import ChunkRows, mix_chunks

        return mix_chunks(config, cache, index, ChunkRows(lengths, slots, starts, ends), *arrays)

    if rotary_positions is None or config.vision is None:
        angles = model_angles(config, indices if rotary_positions is None else rotary_positions)
    else:
        angles = model_angles(config, rotary_positions, config.vision.frequency_axes)
    x = embed_tokens(config, params, tokens)
    deep = None
    if images is not None:
        from gigpo_jax.models.vision.vision import insert_images

        assert config.vision is not None
        x, deep = insert_images(config.vision, params["vision"], x, images)

    def write_routes(index: jax.Array, cache: KVCache, routes: jax.Array) -> KVCache:
        return write_chunk_routes(cache, routes, index, slots, starts)

    select = select_last(lengths)
    hidden, cache = run_layers(
        config, params, cache, x, angles, attend, write_routes, select, experts, deep, mix
    )
    return score_tokens(config, params, apply_final_norm(config, params, hidden)), cache
