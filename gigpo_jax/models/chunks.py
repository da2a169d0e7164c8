"""Prefill in chunks: prompts are read piece by piece, behind what their slots hold already."""

import jax
import jax.numpy as jnp

from gigpo_jax.models.attention import chunk_attention
from gigpo_jax.models.cache import KVCache, write_chunks
from gigpo_jax.models.qwen2 import Params, angles_of, embedded, final_norm, last_tokens, through_layers, unembed
from gigpo_jax.models.qwen2_config import Qwen2Config
from gigpo_jax.models.vision import Features, with_images


def extend(
    config: Qwen2Config,
    params: Params,
    cache: KVCache,
    tokens: jax.Array,
    lengths: jax.Array,
    slots: jax.Array,
    starts: jax.Array,
    turned: jax.Array | None = None,
    images: Features | None = None,
) -> tuple[jax.Array, KVCache]:
    """Runs chunks of prompts and writes them into slots of the cache, behind what these hold.

    Chunks of one prompt may be rows of the same call. A token's keys and values, and the logits, depend on the tokens
    before it, but neither on other rows nor, to the last bit, on which call computed them. Nine parameters, as those of
    `qwen2.prefill`.

    Args:
      config: the shape.
      params: as from `init`.
      cache: updated in place if donated.
      tokens: [B, T] i32, each chunk padded on the right.
      lengths: [B] i32, tokens of each chunk without padding.
      slots: [B] i32, the slot of each chunk; a row with S or more is dropped.
      starts: [B] i32, the index of its first token in the prompt.
      turned: [3, B, T] i32, positions for the rotary embedding, as for `qwen2.hidden_states`; None: the indices.
      images: those in the chunks; None: there are none.

    Returns:
      The logits [B, V] f32 after the last token of each chunk, and the cache.
    """
    inside = jnp.arange(tokens.shape[1])
    nowhere = cache.key.shape[3]
    positions = jnp.where(inside < lengths[:, None], starts[:, None] + inside, nowhere)

    def attend(
        index: jax.Array, cache: KVCache, query: jax.Array, key: jax.Array, value: jax.Array
    ) -> tuple[jax.Array, KVCache]:
        new = write_chunks(cache, key, value, index, slots, starts)
        return chunk_attention(query, new.key, new.value, index, slots, positions), new

    sections = () if turned is None or config.vision is None else config.vision.sections
    turned = starts[:, None] + inside if turned is None else turned
    angles = angles_of(config, turned, sections)
    x = embedded(config, params, tokens)
    if images is not None:
        assert config.vision is not None
        x = with_images(config.vision, params["vision"], x, images)
    hidden, cache = through_layers(config, params, cache, x, angles, attend, last_tokens(lengths))
    return unembed(config, params, final_norm(config, params, hidden)), cache
