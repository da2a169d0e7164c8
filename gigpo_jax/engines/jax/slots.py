"""The device code of the engine: prefilling prompts and decoding tokens of every slot.

These are pure functions; `programs.py` compiles them for fixed shapes. Each call takes one int32
array from the host and returns one, with floats and keys as their bits: for small models the number
of transfers dominates the cost of a call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.jax.sample import sample_tokens, token_keys

if TYPE_CHECKING:
    from gigpo_jax.engines.jax.image_inputs import ImageInputs

STOP_IDS = 16  # largest number of stop token ids of a request
SETTINGS = 8  # columns of a request before its stop ids and its tokens
NO_TOKEN = -1  # stands where no token was drawn
NO_POSITION = 2**20  # an index outside of any slot

Forward = Callable[..., tuple[jax.Array, Any]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SlotState:
    """Progress and sampling settings of S slots.

    Attributes:
      token: [S] i32, the newest token, not yet in the cache.
      position: [S] i32, its index in the sequence.
      count: [S] i32, number of tokens drawn so far.
      limit: [S] i32, number of tokens the request may draw.
      active: [S] bool, whether the slot has an unfinished request.
      key: [S, 2] u32, the request's random key.
      temperature: [S] f32.
      top_p: [S] f32.
      top_k: [S] i32.
      stop_ids: [S, STOP_IDS] i32, padded with NO_TOKEN.
      shift: [S] i32, rotary position minus `position`; None for a text-only model.
    """

    token: jax.Array
    position: jax.Array
    count: jax.Array
    limit: jax.Array
    active: jax.Array
    key: jax.Array
    temperature: jax.Array
    top_p: jax.Array
    top_k: jax.Array
    stop_ids: jax.Array
    shift: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PromptBatch:
    """Prompts, or chunks of prompts, that one device call prefills.

    Attributes:
      rows: [B, columns] i32; see `prefill_prompts` and `chunk_programs.prefill_chunks`.
      images: the images of these rows; None for a text-only model.
    """

    rows: Any
    images: "ImageInputs | None" = None


def init_slots(slots: int, *, shifted: bool = False) -> SlotState:
    """Creates free slots; `shifted` for a model that reads images."""
    zeros = jnp.zeros((slots,), jnp.int32)
    ones = jnp.ones((slots,), jnp.float32)
    return SlotState(
        token=zeros,
        position=zeros,
        count=zeros,
        limit=zeros,
        active=jnp.zeros((slots,), bool),
        key=jnp.zeros((slots, 2), jnp.uint32),
        temperature=ones,
        top_p=ones,
        top_k=zeros,
        stop_ids=jnp.full((slots, STOP_IDS), NO_TOKEN, jnp.int32),
        shift=zeros if shifted else None,
    )


def pack_request(
    row: np.ndarray, tokens: np.ndarray, slot: int, params: SamplingParams, stop_ids: list[int]
) -> None:
    """Writes a request into its row, [SETTINGS + STOP_IDS + T] i32, of a `PromptBatch`.

    The prompt has at most T tokens; at most STOP_IDS ids end the response.
    """
    floats = np.array([params.temperature, params.top_p], np.float32).view(np.int32)
    keys = np.array(params.key, np.uint32).view(np.int32)
    first_token = SETTINGS + STOP_IDS
    row[:] = 0
    # Floats and keys travel as their bits: the whole request is one int32 row.
    row[:SETTINGS] = (slot, len(tokens), params.max_tokens, max(params.top_k, 0), *floats, *keys)
    row[SETTINGS:first_token] = NO_TOKEN
    row[SETTINGS : SETTINGS + len(stop_ids)] = stop_ids
    row[first_token : first_token + len(tokens)] = tokens


def prefill_prompts(
    prefill: Forward,
    params: Any,
    cache: Any,
    state: SlotState,
    batch: PromptBatch,
    *,
    keeps_entropies: bool = False,
    cuts_tokens: bool = True,
) -> tuple[Any, SlotState, jax.Array]:
    """Prefills prompts into their slots and draws each first token.

    Args:
      prefill: Forward pass (params, cache, tokens [B, T], lengths [B], slots [B]) -> (last-token
        logits [B, V], cache). With images it also takes positions [3, B, T] and features.
      params, cache, state: Parameters and KV cache of the model, state of the slots.
      batch: Rows [B, SETTINGS + STOP_IDS + T] from `pack_request`; a row whose slot is S or more
        is dropped.
      keeps_entropies: Whether the result has entropies.
      cuts_tokens: Whether requests may have top-p or top-k.

    Returns:
      The cache, the slots, and [2, B] i32: the tokens, and the bits of their log-probabilities;
      [3, B] with the bits of the entropies.
    """
    # The reverse of `pack_request`: both must agree on the columns.
    rows = batch.rows
    slot = rows[:, 0]
    length = rows[:, 1]
    limit = rows[:, 2]
    top_k = rows[:, 3]
    temperature, top_p = jax.lax.bitcast_convert_type(rows[:, 4:6], jnp.float32).T
    key = jax.lax.bitcast_convert_type(rows[:, 6:8], jnp.uint32)
    stop_ids = rows[:, SETTINGS : SETTINGS + STOP_IDS]
    tokens = rows[:, SETTINGS + STOP_IDS :]

    if batch.images is None:
        shift = None
        logits, cache = prefill(params, cache, tokens, length, slot)
    else:
        shift = batch.images.shift
        # [3, B, T] for the model. In the message rows come first, as partitions split the first
        # axis.
        positions = jnp.moveaxis(batch.images.positions, 1, 0)
        logits, cache = prefill(
            params, cache, tokens, length, slot, positions, batch.images.features
        )

    # The key of a token depends on the request and its index, never on slot or batch.
    first_keys = token_keys(key, jnp.zeros_like(length))
    cuts = (top_p, top_k) if cuts_tokens else None
    token, *scores = sample_tokens(logits, first_keys, temperature, cuts)
    count = jnp.ones_like(length)
    # The drawn token is not in the cache yet: decoding writes it at index `length` first.
    new_slots = SlotState(
        token=token,
        position=length,
        count=count,
        limit=limit,
        active=~_is_finished(token, count, limit, stop_ids),
        key=key,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        stop_ids=stop_ids,
        shift=shift,
    )
    # mode="drop": rows that are not filled name a slot that does not exist.
    state = jax.tree.map(lambda old, new: old.at[slot].set(new, mode="drop"), state, new_slots)
    return cache, state, _stack_draws(token, scores, keeps_entropies)


def _stack_draws(token: jax.Array, scores: Sequence[jax.Array], keeps_entropies: bool) -> jax.Array:
    """Stacks tokens with the bits of their scores, i32: the log-probability and the entropy."""
    kept_scores = scores[: 1 + keeps_entropies]
    bits = [jax.lax.bitcast_convert_type(score, jnp.int32) for score in kept_scores]
    return jnp.stack([token, *bits])


def decode_tokens(
    decode: Forward,
    steps: int,
    params: Any,
    cache: Any,
    state: SlotState,
    control: jax.Array,
    *,
    keeps_entropies: bool = False,
    cuts_tokens: bool = True,
) -> tuple[Any, SlotState, jax.Array]:
    """Draws up to `steps` tokens for every active slot, or until enough slots have finished.

    Args:
      decode: Forward pass (params, cache, tokens [S], positions [S], and shifts [S] where slots
        have them) -> (logits [S, V], cache).
      steps: Largest number of tokens of a slot.
      params, cache, state: Parameters and KV cache of the model, state of the slots.
      control: [1 + S] i32: the number of finished slots to stop after; then, for each slot, 0 to
        cancel it.
      keeps_entropies: Whether the result has entropies.
      cuts_tokens: Whether requests may have top-p or top-k.

    Returns:
      The cache, the slots, and [2, steps, S] i32: the tokens (NO_TOKEN where none was drawn), and
      the bits of their log-probabilities; [3, steps, S] with the bits of the entropies.
    """
    # Requests that were cancelled since the last call end here, without a call of their own.
    slots = state.token.shape[0]
    state = replace(state, active=state.active & (control[1:] != 0))
    active_at_start = jnp.sum(state.active)

    # A loop with an early end, not a scan: a finished batch must not wait for `steps`.
    def continues(carry: tuple[Any, ...]) -> jax.Array:
        step, _, state, _ = carry
        active = jnp.sum(state.active)
        return (step < steps) & (active > 0) & (active_at_start - active < control[0])

    def decode_step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        step, cache, state, out = carry
        # A free slot keeps the cache of its last prompt for the next one: nothing is written.
        position = jnp.where(state.active, state.position, NO_POSITION)
        if state.shift is None:
            logits, cache = decode(params, cache, state.token, position)
        else:
            logits, cache = decode(params, cache, state.token, position, state.shift)

        keys = token_keys(state.key, state.count)
        cuts = None
        if cuts_tokens:
            # A free slot keeps the settings of its last request. Neutral values in their place keep
            # the passes for top-k and top-p out of steps in which no active slot needs them.
            top_p = jnp.where(state.active, state.top_p, 1.0)
            cuts = top_p, jnp.where(state.active, state.top_k, 0)
        token, *scores = sample_tokens(logits, keys, state.temperature, cuts)
        drawn = jnp.where(state.active, token, NO_TOKEN)
        column = _stack_draws(drawn, scores, keeps_entropies)
        # [2, S] becomes entry `step` of the second axis of [2, steps, S].
        out = jax.lax.dynamic_update_slice(out, column[:, None], (0, step, 0))

        drawn_tokens = state.active.astype(jnp.int32)
        count = state.count + drawn_tokens
        is_finished = _is_finished(token, count, state.limit, state.stop_ids)
        state = replace(
            state,
            token=jnp.where(state.active, token, state.token),
            position=state.position + drawn_tokens,
            count=count,
            active=state.active & ~is_finished,
        )
        return step + 1, cache, state, out

    out = jnp.full((2 + keeps_entropies, steps, slots), NO_TOKEN, jnp.int32)
    carry = (jnp.int32(0), cache, state, out)
    _, cache, state, out = jax.lax.while_loop(continues, decode_step, carry)
    return cache, state, out


def _is_finished(
    token: jax.Array, count: jax.Array, limit: jax.Array, stop_ids: jax.Array
) -> jax.Array:
    # The padding of `stop_ids`, NO_TOKEN, is negative and equals no drawn token.
    return (count >= limit) | jnp.any(token[:, None] == stop_ids, axis=-1)
