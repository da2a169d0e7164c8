"""The in-process engine: continuous batching over a fixed number of slots with a static KV cache.

A thread drives the device. Every round prefills waiting prompts into free slots (padded to one of a few shapes), then
decodes several tokens for all slots in one device call. `warmup` compiles all programs; nothing is compiled after it.

A response does not depend on the other requests: its random keys come from the request alone, each row of a batch is
computed independently, and with one size in `prefill_rows` all array shapes are the same. With several sizes matrix
products are tiled differently: the last bits depend on the number of prompts in a prefill, and in rare cases a token.
"""

import asyncio
import collections
import functools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.errors import InputError
from gigpo_jax.models import qwen2
from gigpo_jax.models.images import PromptImages
from gigpo_jax.models.tokenizer import Tokenizer
from gigpo_jax.sampling import slots as device
from gigpo_jax.sampling.base import Completion, OnTokens, SamplingParams
from gigpo_jax.sampling.chunked import ChunkReader, NewRows
from gigpo_jax.sampling.pictures import ImageEncoder, PictureRows
from gigpo_jax.sampling.placement import placement_of
from gigpo_jax.sampling.prefixes import Prefixes
from gigpo_jax.sampling.programs import EngineSettings, Programs, described, difference
from gigpo_jax.sampling.request import (
    Request,
    Weights,
    checked_images,
    checked_prompt,
    resolve,
    stop_ids,
)
from gigpo_jax.sampling.slot_table import SlotTable
from gigpo_jax.sampling.stopping import StopStrings

GATHER_S = 0.001  # an idle engine waits this long for more requests, and again while more arrive
GATHER_LIMIT_S = 0.01
REQUEST_LIMIT_S = 3600.0
JOIN_LIMIT_S = 60.0

Tokens = Sequence[int] | np.ndarray

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """Samples responses from the weights of one update; `generate` as that of `sampling.base.Engine`."""

    generate: Callable[..., Awaitable[Completion]]


class JaxEngine:
    """Samples responses from a model in this process; see `sampling.base.Engine`.

    Attributes:
      generated_tokens: tokens of all responses so far.
      prompt_tokens: tokens of all prompts so far.
      reused_tokens: of these, those whose keys and values a slot held already.
    """

    def __init__(
        self,
        config: qwen2.Qwen2Config,
        params: qwen2.Params,
        settings: EngineSettings,
        *,
        tokenizer: Tokenizer | None = None,
        version: int = 0,
    ):
        """Starts the engine's thread; call `close` when done.

        Args:
          config: the model's shape.
          params: as from `qwen2.init`, on one device or sharded over a mesh with an axis `tensor`. Cast and gathered
            where they need to be (`Programs.prepare`), otherwise not copied. Who donates these arrays elsewhere must
            call `update_weights` before the next request. Slots are spread over the engine's devices of this host.
          settings: slots, lengths and dtype.
          tokenizer: decodes responses for stop strings; None if no request has any.
          version: of these parameters.
        """
        self.config, self.slots = config, settings.slots
        self._buckets, self._rows, self._max_length = settings.buckets, settings.rows, settings.max_length
        self.generated_tokens = self.prompt_tokens = self.reused_tokens = 0
        dtype = settings.dtype or params["embed"].dtype
        placement = placement_of(params, settings.tensor, settings.devices)
        self._parts, self._part = placement.parts, settings.slots // placement.parts
        self._programs = Programs(config, settings, dtype, placement)
        chunk = settings.prefill_chunk
        self._encoder: ImageEncoder | None = None
        self._pictures: NewRows | None = None
        if config.vision is not None:
            self._encoder = ImageEncoder(self._programs, number=self._rows[-1] * self._parts)
            self._pictures = functools.partial(PictureRows, width=config.hidden_size, dtype=jnp.dtype(dtype))
        self._reader: ChunkReader | None = None
        self._prefixes = Prefixes(self.slots, self._parts, chunk)
        if chunk:
            sizes = {"slots": self.slots, "parts": self._parts, "rows": self._rows[-1], "chunk": chunk}
            self._reader = ChunkReader(self._programs, **sizes, pictures=self._pictures)
        self._stops = StopStrings(tokenizer, config.vocab_size) if tokenizer is not None else None
        self._described = described(params)
        self._newest: Weights | None = Weights(self._programs.prepare(params), version)
        self._weights: Weights | None = None
        self._table = SlotTable(self.slots, self._parts)
        self._waiting: collections.deque[Request] = collections.deque()
        self._wake = threading.Condition()
        self._device_lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="jax-engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> "JaxEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def compile_count(self) -> int:
        """Programs compiled so far; constant after `warmup`."""
        return self._programs.compile_count

    def warmup(self) -> None:
        """Compiles all programs but those that encode images of some size; others are compiled on first use."""
        with self._device_lock:
            self._weights = self._weights or self._newest
            assert self._weights is not None
            if self._reader is not None:
                self._reader.warmup(self._weights.params)
            for length in self._buckets if self._reader is None else ():
                for rows in self._rows:
                    self._admit([[]] * self._parts, rows, length)
            self._advance(1)

    async def generate(
        self,
        tokens: Tokens,
        params: SamplingParams,
        images: PromptImages | None = None,
        *,
        on_tokens: OnTokens | None = None,
        weights: Weights | None = None,
    ) -> Completion:
        """Samples a response, from the newest weights if none are given; it and the `tokens` [P] must fit `max_length`.

        Raises:
          InputError: the prompt does not fit, or a setting cannot be met; only this request fails.
          RuntimeError: the engine was closed, its device failed, or it frees its memory for an update.
          TimeoutError: no response within an hour.
        """
        with self._wake:
            if self._closed:
                raise RuntimeError("the engine is closed")
            request = self._request(tokens, params, images, weights)
            request.on_tokens = on_tokens
            self._waiting.append(request)
            self._wake.notify()
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                return await request.future
        finally:
            # If this coroutine was cancelled or timed out, the slot is free for others.
            request.cancelled = True
            del request, weights  # the traceback of an error would keep them

    def snapshot(self) -> Snapshot:
        """Generates with the weights of now, which stay in memory as long as it is there."""
        assert self._newest is not None
        return Snapshot(functools.partial(self.generate, weights=self._newest))

    def update_weights(self, params: qwen2.Params, version: int) -> None:
        """Sets the weights of later requests; earlier ones, running or waiting, keep their weights.

        All hosts must call it in the same order.

        Raises:
          ValueError: a tree of another structure, shape or dtype.
        """
        unlike = difference(self._described, described(params))
        if unlike:
            raise ValueError(f"version {version}: parameters unlike those of the engine: {unlike}")
        with self._device_lock, self._wake:
            self._drop_cancelled()
            if not (self._waiting or self._table.active()):
                self._newest = self._weights = None  # frees the old arrays before the new ones are made
            self._newest = Weights(self._programs.prepare(params), version)

    def free_memory(self) -> None:
        """Frees weights and cache until the next `update_weights`; requests that are left fail."""
        with self._device_lock, self._wake:
            self._drop_cancelled()
            self._fail("the engine frees its memory for an update", None, everyone=True)
            self._newest = self._weights = None
            self._programs.reset()
            self._prefixes.clear()

    def close(self) -> None:
        """Stops the thread and frees the cache; unfinished requests fail with a message. May be called twice."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_LIMIT_S)

    # All methods below run in the engine's thread or under its locks, except `_request`.

    def _request(
        self, tokens: Tokens, params: SamplingParams, images: PromptImages | None = None, weights: Weights | None = None
    ) -> Request:
        prompt = checked_prompt(
            tokens, params, max_length=self._max_length, longest=self._buckets[-1], vocab_size=self.config.vocab_size
        )
        ends = stop_ids(params, self._stops)
        if len(ends) > device.STOP_IDS:
            raise InputError(f"stop_token_ids: {len(ends)} ids; an engine takes at most {device.STOP_IDS}")
        weights = weights or self._newest
        if weights is None:
            raise RuntimeError("the engine has no weights during an update; ask again later")
        images = checked_images(self.config.vision, prompt, images)
        return Request(prompt, params, ends, weights, asyncio.get_running_loop().create_future(), images)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._closed or self._waiting or self._table.active()):
                    self._wake.wait()
                if self._closed:
                    break
            self._gather()
            try:
                with self._device_lock:
                    self._round()
            except Exception as err:  # the device may raise anything; the waiting requests must fail with it
                log.exception("the engine failed")
                self._fail(f"the engine failed: {err}", err, everyone=False)
                self._programs.reset()
                self._prefixes.clear()
        self._fail("the engine was closed", None, everyone=True)
        self._programs.reset()
        self._newest = self._weights = None

    def _gather(self) -> None:
        """Waits a moment if the engine is idle, so that requests that arrive together are batched."""
        if self._table.active():
            return
        deadline, seen = time.monotonic() + GATHER_LIMIT_S, 0
        while seen < len(self._waiting) < self.slots and time.monotonic() < deadline:
            seen = len(self._waiting)
            time.sleep(GATHER_S)

    def _round(self) -> None:
        self._drop_cancelled()
        if self._reader is None:
            self._read_prompts()
        else:
            self._read_chunks(self._reader)
        if not self._table.active():
            return
        same = sum(request.weights is self._weights for request in tuple(self._waiting))
        target = max(1, min(same, self.slots // 8)) if same else self.slots + 1
        out = self._advance(-(-target // self._parts))
        self._collect(out, range(self.slots))

    def _read_prompts(self) -> None:
        """Prefills waiting prompts into the free slots, prompts of one bucket together."""
        groups: dict[int, list[list[int]]] = {}
        requests = []
        for slot in self._table.free():
            request = self._next()
            if request is None:
                break
            self._take(slot, request)
            requests.append(request)
            bucket = next(length for length in self._buckets if length >= request.prompt.size)
            groups.setdefault(bucket, [[] for _ in range(self._parts)])[slot // self._part].append(slot)
        self._encode(requests)
        read = []
        for bucket, taken in sorted(groups.items()):
            while longest := max(map(len, taken)):
                size = next((rows for rows in self._rows if rows >= longest), self._rows[-1])
                batch, taken = [slots[:size] for slots in taken], [slots[size:] for slots in taken]
                read.append((batch, size, self._admit(batch, size, bucket)))
        for batch, size, out in read:
            slots = [slot for part in batch for slot in (*part, *[None] * (size - len(part)))]
            self._collect(np.asarray(out)[:, None], slots)

    def _read_chunks(self, reader: ChunkReader) -> None:
        """Prefills waiting prompts into free slots, without the chunks that slots hold already."""
        if not self._waiting:
            return
        self._prefixes.begin()
        planned = []
        while (free := self._table.free()) and (request := self._next()):
            reading = self._prefixes.place(request.content, free)
            self._take(reading.slot, request)
            self.reused_tokens += reading.start
            planned.append((reading, request))
        if planned:
            assert self._weights is not None
            self._encode([request for _, request in planned])
            for out, slots in reader.read(self._weights.params, planned):
                self._collect(np.asarray(out)[:, None], slots)

    def _encode(self, requests: Sequence[Request]) -> None:
        """Encodes the images of requests that are read next."""
        if self._encoder is not None and requests:
            assert self._weights is not None
            self._encoder.encode(self._weights.params, requests)

    def _take(self, slot: int, request: Request) -> None:
        self._table.take(slot, request)
        self.prompt_tokens += request.prompt.size

    def _next(self) -> Request | None:
        """The first waiting request that can start now; one with new weights waits until all slots are free."""
        if not self._waiting:
            return None
        request = self._waiting[0]
        if request.weights is not self._weights:
            if self._table.active():
                return None
            self._weights = request.weights
            self._prefixes.clear()
            if self._encoder is not None:
                self._encoder.clear()
        return self._waiting.popleft()

    def _admit(self, taken: list[list[int]], size: int, bucket: int) -> jax.Array:
        """Prefills the prompts of these slots, at most `size` of each part."""
        assert self._weights is not None
        rows = np.zeros((self._parts, size, device.SETTINGS + device.STOP_IDS + bucket), np.int32)
        rows[:, :, 0] = self._part  # no slot: a row that is not filled is dropped
        pictures = self._pictures and self._pictures(self._parts * size, bucket)
        for part, slots in enumerate(taken):
            for row, slot in enumerate(slots):
                request = self._table.requests[slot]
                assert request is not None
                device.pack_request(
                    rows[part, row], request.prompt, slot % self._part, request.params, request.stop_ids
                )
                if pictures:
                    pictures.put(part * size + row, request, 0, request.prompt.size)
        flat = rows.reshape(-1, rows.shape[2])
        return self._programs.admit(self._weights.params, (flat, pictures.message) if pictures else flat)

    def _collect(self, out: Any, slots: Sequence[int | None]) -> None:
        """Adds tokens [2, steps, B] of these B slots to their requests and resolves finished ones."""
        tokens, bits = np.asarray(out)
        logprobs = bits.view(np.float32)
        counts = np.sum(tokens != device.NOTHING, axis=0).tolist()
        done = []
        for column, slot in enumerate(slots):
            request, count = None if slot is None else self._table.requests[slot], counts[column]
            if slot is None or request is None or not count:
                continue
            completion = request.take(tokens[:count, column], logprobs[:count, column], self._stops)
            if completion is not None:
                self._table.release(slot)
                self.generated_tokens += completion.tokens.size
                done.append((request, completion))
        resolve(done)

    def _drop_cancelled(self) -> None:
        self._table.drop_cancelled()
        with self._wake:
            self._waiting = collections.deque(request for request in self._waiting if not request.cancelled)

    def _fail(self, message: str, cause: Exception | None, *, everyone: bool) -> None:
        failed = self._table.clear()
        with self._wake:
            if everyone:
                failed += self._waiting
                self._waiting.clear()
            elif not failed and self._waiting:
                failed.append(self._waiting.popleft())
        for request in failed:
            request.reject(message, cause)

    def _advance(self, target: int) -> jax.Array:
        """Decodes until `target` slots of a part are done, or for the settings' number of steps."""
        assert self._weights is not None
        control = np.insert(self._table.keep.reshape(self._parts, -1), 0, target, axis=1)
        return self._programs.advance(self._weights.params, control.reshape(-1))
