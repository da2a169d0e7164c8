"""Device calls on chunks of prompts: prefilling them, and copying them from slot to slot."""

import functools
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from gigpo_jax.engines.jax.placement import SLOTS
from gigpo_jax.engines.jax.programs import Programs, leaf_shapes
from gigpo_jax.engines.jax.slots import Forward, PromptBatch, SlotState, prefill_prompts
from gigpo_jax.models import decoder
from gigpo_jax.models.chunk_cache import copy_chunks
from gigpo_jax.models.chunks import extend


def prefill_chunks(
    prefill: Forward,
    params: Any,
    cache: Any,
    state: SlotState,
    batch: PromptBatch,
    *,
    keeps_entropies: bool = False,
    cuts_tokens: bool = True,
) -> tuple[Any, SlotState, jax.Array]:
    """Prefills a chunk of a prompt in each row; only a last chunk draws a token.

    Args:
      prefill: Forward pass (params, cache, tokens [B, T], lengths [B], slots [B], starts [B], ends
        [B]) -> (last-token logits [B, V], cache). With images it also takes positions [3, B, T] and
        features.
      params: Parameters of the model.
      cache: KV cache of the model.
      state: State of the slots.
      batch: Rows [B, 2 + SETTINGS + STOP_IDS + T]. The two first columns are the slot of the chunk
        (S: the row is dropped) and its first index in the prompt. Then follows a row as for
        `prefill_prompts` with the prompt's length up to the chunk's end; a row whose slot there is
        S draws no token.
      keeps_entropies, cuts_tokens: As for `prefill_prompts`.

    Returns:
      The result of `prefill_prompts`.
    """
    slot = batch.rows[:, 0]
    start = batch.rows[:, 1]

    def prefill_chunk(
        params: Any,
        cache: Any,
        tokens: jax.Array,
        lengths: jax.Array,
        drawing_slots: jax.Array,
        *images: Any,
    ) -> tuple[jax.Array, Any]:
        # `prefill_prompts` names the slots that draw, and lengths from the start of the prompt.
        # Keys and values go to the slot of the chunk, and its own length starts at `start`.
        return prefill(params, cache, tokens, lengths - start, slot, start, drawing_slots, *images)

    prompts = replace(batch, rows=batch.rows[:, 2:])
    return prefill_prompts(
        prefill_chunk,
        params,
        cache,
        state,
        prompts,
        keeps_entropies=keeps_entropies,
        cuts_tokens=cuts_tokens,
    )


def run_prefill_chunks(programs: Programs, params: decoder.Params, batch: PromptBatch) -> jax.Array:
    """Prefills chunks of prompts; see `prefill_chunks`."""
    forward = functools.partial(extend, kernels=programs.placement.kernels)
    function = programs.bind_forward(prefill_chunks, forward)
    name = ("prefill", "chunks", *leaf_shapes(batch))
    return programs.run_step(name, function, params, batch, (None, SLOTS))


def copy_prefix_chunks(programs: Programs, chunks: np.ndarray) -> None:
    """Copies chunks of the cache from slot to slot.

    Args:
      programs: Programs of the engine.
      chunks: [partitions * N, 3] i32: source slot, target slot (S: nothing is copied), first
        index.
    """
    length = programs.settings.prefill_chunk

    def copy_step(
        _params: Any, cache: Any, state: Any, chunks: jax.Array
    ) -> tuple[Any, Any, jax.Array]:
        sources, targets, starts = chunks.T
        # A step must return a result. This one is small, and nobody reads it.
        return copy_chunks(cache, sources, targets, starts, length), state, sources

    # Without parameters: a copy reads no weights.
    programs.run_step(("copy", len(chunks)), copy_step, {}, chunks, (SLOTS,))
