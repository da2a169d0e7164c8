"""What runs on the device: prefilling prompts into slots, and decoding several tokens for every slot.

Both are pure functions; `programs.py` compiles them for fixed shapes. Each call takes one int32 array from the host and
returns one, with floats and keys as their bits: for small models the number of transfers dominates the cost of a call.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.sampling.base import SamplingParams
from gigpo_jax.sampling.sample import sample, token_keys

STOP_IDS = 16  # stop token ids a request may have
SETTINGS = 8  # columns of a request before its stop ids and its tokens
NOTHING = -1  # in place of a token: none was drawn
NOWHERE = 2**20  # an index outside of any slot

Forward = Callable[..., tuple[jax.Array, Any]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SlotState:
    """Progress and sampling settings of S slots.

    Attributes:
      token: [S] i32, the newest token, not yet in the cache.
      position: [S] i32, its index in the sequence.
      count: [S] i32, tokens drawn so far.
      limit: [S] i32, tokens the request may draw.
      active: [S] bool, whether the slot has an unfinished request.
      key: [S, 2] u32, the request's key.
      temperature: [S] f32.
      top_p: [S] f32.
      top_k: [S] i32.
      stop_ids: [S, STOP_IDS] i32, padded with NOTHING.
      shift: [S] i32, what rotary positions differ by from `position`; None for a model of text alone.
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


def init_slots(slots: int, *, shifted: bool = False) -> SlotState:
    """Free slots; `shifted` for a model that reads images."""
    zero = jnp.zeros((slots,), jnp.int32)
    one = jnp.ones((slots,), jnp.float32)
    return SlotState(
        token=zero,
        position=zero,
        count=zero,
        limit=zero,
        active=jnp.zeros((slots,), bool),
        key=jnp.zeros((slots, 2), jnp.uint32),
        temperature=one,
        top_p=one,
        top_k=zero,
        stop_ids=jnp.full((slots, STOP_IDS), NOTHING, jnp.int32),
        shift=zero if shifted else None,
    )


def pack_request(row: np.ndarray, tokens: np.ndarray, slot: int, params: SamplingParams, stop_ids: list[int]) -> None:
    """Writes a request into its row [SETTINGS + STOP_IDS + T] i32; the prompt `tokens` is [P] with P <= T."""
    floats = np.array([params.temperature, params.top_p], np.float32).view(np.int32)
    keys = np.array(params.key, np.uint32).view(np.int32)
    row[:] = 0
    row[:SETTINGS] = (slot, len(tokens), params.max_tokens, max(params.top_k, 0), *floats, *keys)
    row[SETTINGS : SETTINGS + STOP_IDS] = NOTHING
    row[SETTINGS : SETTINGS + len(stop_ids)] = stop_ids
    row[SETTINGS + STOP_IDS : SETTINGS + STOP_IDS + len(tokens)] = tokens


def admit(
    prefill: Forward, params: Any, cache: Any, state: SlotState, message: Any
) -> tuple[Any, SlotState, jax.Array]:
    """Prefills prompts into their slots and draws the first token of each.

    Args:
      prefill: (params, cache, tokens [B, T], lengths [B], slots [B], and of a model that reads images positions and
        images) -> (last-token logits [B, V], cache).
      params: the model's parameters.
      cache: its KV cache.
      state: the slots.
      message: rows [B, SETTINGS + STOP_IDS + T] i32 from `pack_request`; a row whose slot is S or more is dropped. For
        a model that reads images a pair of them and `pictures`: positions [B, 3, T], shifts [B] and `Features`.

    Returns:
      The cache, the slots, and [2, B] i32: the tokens, and the bits of their log-probabilities.
    """
    rows, pictures = message if isinstance(message, tuple) else (message, None)
    slot, length, limit, top_k = rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3]
    temperature, top_p = jax.lax.bitcast_convert_type(rows[:, 4:6], jnp.float32).T
    key = jax.lax.bitcast_convert_type(rows[:, 6:8], jnp.uint32)
    stop_ids = rows[:, SETTINGS : SETTINGS + STOP_IDS]
    read, shift = ((jnp.moveaxis(pictures[0], 1, 0), pictures[2]), pictures[1]) if pictures else ((), None)
    logits, cache = prefill(params, cache, rows[:, SETTINGS + STOP_IDS :], length, slot, *read)
    token, logprob = sample(logits, token_keys(key, jnp.zeros_like(length)), temperature, top_p, top_k)
    new = SlotState(
        token=token,
        position=length,
        count=jnp.ones_like(length),
        limit=limit,
        active=~_finished(token, jnp.ones_like(length), limit, stop_ids),
        key=key,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        stop_ids=stop_ids,
        shift=shift,
    )
    state = jax.tree.map(lambda old, rows: old.at[slot].set(rows, mode="drop"), state, new)
    return cache, state, jnp.stack([token, jax.lax.bitcast_convert_type(logprob, jnp.int32)])


def extend(
    prefill: Forward, params: Any, cache: Any, state: SlotState, message: Any
) -> tuple[Any, SlotState, jax.Array]:
    """As `admit`, with a chunk of a prompt in each row; only the last chunk of a prompt draws a token.

    Args:
      prefill: (params, cache, tokens [B, T], lengths [B], slots [B], starts [B], and of a model that reads images
        positions and images) -> (last-token logits [B, V], cache).
      params, cache, state: as for `admit`.
      message: as for `admit`, but with rows [B, 2 + SETTINGS + STOP_IDS + T] i32: the slot of the chunk (S: the row is
        dropped) and its first index in the prompt, then as for `admit` the prompt's length up to the chunk's end; a
        row whose slot there is S draws no token.
    """
    rows, pictures = message if isinstance(message, tuple) else (message, None)
    slot, start = rows[:, 0], rows[:, 1]

    def chunk(
        params: Any, cache: Any, tokens: jax.Array, lengths: jax.Array, _: jax.Array, *read: Any
    ) -> tuple[jax.Array, Any]:
        return prefill(params, cache, tokens, lengths - start, slot, start, *read)

    return admit(chunk, params, cache, state, rows[:, 2:] if pictures is None else (rows[:, 2:], pictures))


def advance(
    decode: Forward, steps: int, params: Any, cache: Any, state: SlotState, control: jax.Array
) -> tuple[Any, SlotState, jax.Array]:
    """Draws up to `steps` tokens for every active slot.

    Stops early once no slot is active, or once as many slots finished as `control` asks for.

    Args:
      decode: (params, cache, tokens [S], positions [S], and shifts [S] where slots have them) -> (logits [S, V],
        cache).
      steps: tokens at most.
      params: the model's parameters.
      cache: its KV cache.
      state: the slots.
      control: [1 + S] i32: the number of finished slots to stop after; then, for each slot, 0 to cancel it.

    Returns:
      The cache, the slots, and [2, steps, S] i32: the tokens (NOTHING where none was drawn), and the bits of their
      log-probabilities.
    """
    slots = state.token.shape[0]
    state = replace(state, active=state.active & (control[1:] != 0))
    begun = jnp.sum(state.active)

    def go_on(carry: tuple[Any, ...]) -> jax.Array:
        step, _, state, _ = carry
        left = jnp.sum(state.active)
        return (step < steps) & (left > 0) & (begun - left < control[0])

    def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        step, cache, state, out = carry
        # A free slot keeps what it holds of its last prompt for the next one: nothing is written.
        shift = () if state.shift is None else (state.shift,)
        position = jnp.where(state.active, state.position, NOWHERE)
        logits, cache = decode(params, cache, state.token, position, *shift)
        keys = token_keys(state.key, state.count)
        # A free slot keeps the settings of its last request; without them it causes no top-k or top-p pass.
        top_p, top_k = jnp.where(state.active, state.top_p, 1.0), jnp.where(state.active, state.top_k, 0)
        token, logprob = sample(logits, keys, state.temperature, top_p, top_k)
        new = jnp.stack([jnp.where(state.active, token, NOTHING), jax.lax.bitcast_convert_type(logprob, jnp.int32)])
        drawn = state.active.astype(jnp.int32)
        count = state.count + drawn
        state = replace(
            state,
            token=jnp.where(state.active, token, state.token),
            position=state.position + drawn,
            count=count,
            active=state.active & ~_finished(token, count, state.limit, state.stop_ids),
        )
        return step + 1, cache, state, jax.lax.dynamic_update_slice(out, new[:, None], (0, step, 0))

    out = jnp.full((2, steps, slots), NOTHING, jnp.int32)
    _, cache, state, out = jax.lax.while_loop(go_on, body, (jnp.int32(0), cache, state, out))
    return cache, state, out


def _finished(token: jax.Array, count: jax.Array, limit: jax.Array, stop_ids: jax.Array) -> jax.Array:
    return (count >= limit) | jnp.any(token[:, None] == stop_ids, axis=-1)
