"""Chunks of prompts in gated delta-net layers: they continue the states of their slots.

A state cannot go back. So that other prompts may continue a prompt, its slot also has a checkpoint:
the states before the prompt's last chunk.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gigpo_jax.models.cache import KVCache
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.delta_layer import DeltaState, delta_config, split_channels
from gigpo_jax.models.delta_rule import (
    CHUNK,
    SolvedChunks,
    convolve,
    join_chunks,
    run_chunks,
    solve_chunks,
)


class ChunkRows(NamedTuple):
    """Where the B chunks of prompts of a call belong, each [B] i32.

    Attributes:
      lengths: tokens of each chunk without padding.
      slots: slot of each chunk; S or more: the row is dropped.
      starts: index in the prompt of the chunk's first token.
      ends: slot of a chunk with which its prompt ends, S for others; None: no prompt ends.
    """

    lengths: jax.Array
    slots: jax.Array
    starts: jax.Array
    ends: jax.Array | None


def mix_chunks(
    config: DecoderConfig,
    cache: KVCache,
    layer: jax.Array | int,
    rows: ChunkRows,
    inputs: jax.Array,
    taps: jax.Array,
    rate: jax.Array,
    log_decay: jax.Array,
) -> tuple[jax.Array, KVCache]:
    """Mixes chunks of prompts, as the `mix` of `apply_mixer`.

    Rows go one after the other, as several may be chunks of one prompt. The states before a
    prompt's last chunk go into the checkpoints.

    Args:
      config: model shape.
      cache: cache with states and checkpoints.
      layer: index of the layer among those with states.
      rows: places of the chunks.
      inputs: [B, T, C]; this and the other arguments are as for `mix`.
      taps: [C, 1, W].
      rate: [B, T, G * R].
      log_decay: [B, T, G * R].

    Returns:
      What the tokens read [B, T, G, R, V] f32, and the cache.
    """
    delta = delta_config(config)

    def read_slot(store: jax.Array, row: ChunkRows) -> jax.Array:
        state = store.at[layer, row.slots].get(mode="clip")
        return jnp.where(row.starts > 0, state, 0.0)

    def add_inputs(
        store: jax.Array, row: tuple[ChunkRows, jax.Array]
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        place, inputs = row
        earlier = read_slot(store, place)
        window = jnp.concatenate([earlier, inputs])
        last = jax.lax.dynamic_slice_in_dim(window, place.lengths, delta.taps - 1)
        return store.at[layer, place.slots].set(last, mode="drop"), (earlier, window)

    new_inputs, (earlier, windows) = jax.lax.scan(
        add_inputs, cache.states.inputs, (rows, inputs.astype(jnp.float32))
    )
    convolved = convolve(windows, taps, jnp.ones(windows.shape[:2], jnp.int32))
    convolved = convolved[:, delta.taps - 1 :]
    heads = split_channels(delta, jax.nn.silu(convolved).astype(inputs.dtype))
    grouped = (*rate.shape[:-1], delta.key_heads, -1)
    is_token = jnp.arange(inputs.shape[1]) < rows.lengths[:, None]
    size = min(CHUNK, 1 << (inputs.shape[1] - 1).bit_length())
    chunks = solve_chunks(
        *heads, rate.reshape(grouped), log_decay.reshape(grouped), is_token.astype(jnp.int32), size
    )

    def run_row(
        store: jax.Array, row: tuple[ChunkRows, SolvedChunks]
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        place, chunks = row
        before = read_slot(store, place)
        state, read = run_chunks(before, chunks)
        return store.at[layer, place.slots].set(state, mode="drop"), (before, read)

    by_row = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), chunks)
    new_rule, (before, read) = jax.lax.scan(run_row, cache.states.rule, (rows, by_row))
    read = join_chunks(jnp.swapaxes(read, 0, 1), inputs.shape[1])
    cache = replace(cache, states=DeltaState(new_rule, new_inputs))
    if rows.ends is not None:
        checkpoints = jax.tree.map(
            lambda store, state: store.at[layer, rows.ends].set(state, mode="drop"),
            cache.checkpoints,
            DeltaState(before, earlier),
        )
        cache = replace(cache, checkpoints=checkpoints)
    return read, cache
