"""The in-process engine: continuous batching over a fixed number of slots with a static KV cache.

A thread drives the device. Every round prefills waiting prompts into free slots (padded to one of a
few shapes), then decodes several tokens for all slots in one device call. Where several sets of
devices hold the weights, each has a *partition* of the slots. `warmup` compiles all programs; after
it only the first request with top-p or top-k compiles others.

A response does not depend on the other requests: its random keys come from the request alone, each
row of a batch is computed independently, and with one size in `prefill_rows` all array shapes are
the same. With several sizes matrix products are tiled differently: the last bits depend on the
number of prompts in a prefill, and in rare cases a token. With `keep_responses` they depend also on
whether a conversation lost its slot (`kept_slots.py`).
"""

import asyncio
import collections
import functools
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from gigpo_jax.engines.base import Completion, OnTokens, SamplingParams
from gigpo_jax.engines.jax.engine_devices import place_engine
from gigpo_jax.engines.jax.prefill import PromptReader
from gigpo_jax.engines.jax.programs import EngineSettings, Programs, check_leaves, describe_leaves
from gigpo_jax.engines.jax.slot_table import SlotTable
from gigpo_jax.engines.jax.slots import NO_TOKEN, STOP_IDS
from gigpo_jax.engines.request import (
    Request,
    Session,
    Snapshot,
    Weights,
    check_prompt,
    select_stop_ids,
)
from gigpo_jax.engines.stopping import StopStrings
from gigpo_jax.models import decoder
from gigpo_jax.models.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gigpo_jax.engines.jax.held_tokens import HeldTokens
    from gigpo_jax.models.vision.images import PromptImages

GATHER_S = 0.001  # time an idle engine waits for more requests, and again while more arrive
GATHER_LIMIT_S = 0.01
REQUEST_LIMIT_S = 3600.0
JOIN_LIMIT_S = 60.0

Tokens = Sequence[int] | np.ndarray

log = logging.getLogger(__name__)


class JaxEngine:
    """Samples responses from a model in this process; see `engines.base.Engine`.

    Attributes:
      generated_tokens: Number of tokens of all responses so far.
      prompt_tokens: Number of tokens of all prompts so far.
      reused_tokens: Number of prompt tokens whose keys and values a slot held already.
    """

    def __init__(
        self,
        config: decoder.DecoderConfig,
        params: decoder.Params,
        settings: EngineSettings,
        *,
        tokenizer: Tokenizer | None = None,
        version: int = 0,
    ):
        """Starts the engine's thread; call `close` when done.

        Args:
          config: Shape of the model.
          params: Parameters as from `decoder.init_params`, on one device or sharded over a mesh
            with an axis `tensor`. `Programs.prepare_params` copies those that it casts or gathers.
            A caller that donates the others must call `update_weights` before the next request.
          settings: Slots, lengths and dtype.
          tokenizer: Decoder of responses for stop strings; None if no request has any.
          version: Version of these parameters.
        """
        self.config = config
        self.slots = settings.slots
        self.generated_tokens = 0
        self.prompt_tokens = 0
        self.reused_tokens = 0
        self._max_prompt = settings.buckets[-1]
        self._max_length = settings.max_length
        self._keeps_routes = settings.keeps_routes

        dtype = settings.dtype or params["embed"].dtype
        placement = place_engine(params, settings.tensor, settings.devices)
        self._partitions = placement.partitions
        self._programs = Programs(config, settings, dtype, placement)

        self._encoder: Any = None  # an `ImageEncoder` of a model that reads images
        make_image_rows = None
        if config.vision is not None:
            from gigpo_jax.engines.jax.images import ImageEncoder, image_rows_maker

            batch_size = settings.rows[-1] * self._partitions
            self._encoder = ImageEncoder(self._programs, batch_size=batch_size)
            make_image_rows = image_rows_maker(config, dtype)
        self._reader = PromptReader(self._programs, settings, self._partitions, make_image_rows)
        self._held: HeldTokens | None = None
        if settings.prefill_chunk:
            from gigpo_jax.engines.jax.held_tokens import hold_tokens

            self._held = hold_tokens(self._programs, settings, self._partitions, make_image_rows)

        self._stops = StopStrings(tokenizer) if tokenizer is not None else None
        self._leaf_types = describe_leaves(params)
        # The weights of new requests, and the weights that the slots use now.
        self._newest: Weights | None = Weights(self._programs.prepare_params(params), version)
        self._weights: Weights | None = None
        self._table = SlotTable(self.slots, self._partitions)
        self._waiting: collections.deque[Request] = collections.deque()
        # `_wake` guards the waiting requests. `_device_lock` guards weights, slots and cache; it is
        # held for a whole round, so `generate`, which runs in an event loop, must not take it.
        self._wake = threading.Condition()
        self._device_lock = threading.Lock()
        self._closed = False
        # A daemon, so that a process whose caller forgot `close` can end.
        self._thread = threading.Thread(target=self._serve_requests, name="jax-engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> "JaxEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def compile_count(self) -> int:
        """Number of programs compiled so far; see `warmup`."""
        return self._programs.compile_count

    def warmup(self) -> None:
        """Compiles all programs but the image encoders, which follow on first use of a size."""
        with self._device_lock:
            self._weights = self._weights or self._newest
            assert self._weights is not None
            if self._held is not None:
                self._held.reader.warmup(self._weights.params)
            else:
                self._reader.warmup(self._weights.params)
            if self._keeps_routes:
                from gigpo_jax.engines.jax.slot_routes import read_routes

                read_routes(self._programs, np.zeros(self._partitions, np.int32))
            # No slot is active on the device yet: the program is compiled, and its loop makes no
            # step.
            self._decode(1)

    async def generate(
        self,
        tokens: Tokens,
        params: SamplingParams,
        images: "PromptImages | None" = None,
        *,
        on_tokens: OnTokens | None = None,
        weights: Weights | None = None,
    ) -> Completion:
        """Samples a response, by default from the newest weights; see `engines.base.Engine`.

        Raises:
          InputError: The prompt does not fit, or a setting cannot be met; only this request fails.
          RuntimeError: The engine was closed, its device failed, or it frees its memory for an
            update.
          TimeoutError: No response within an hour.
        """
        with self._wake:
            if self._closed:
                raise RuntimeError("the engine is closed")
            # Under the lock: otherwise `close` could end the thread before the request is queued,
            # and nobody would answer it, or `update_weights` would not see that its weights are
            # still needed.
            request = self._make_request(tokens, params, images, weights)
            if on_tokens is not None:
                loop = asyncio.get_running_loop()
                request.on_tokens = lambda drawn: loop.call_soon_threadsafe(on_tokens, drawn)
            self._waiting.append(request)
            self._wake.notify()
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                return await asyncio.wrap_future(request.future)
        finally:
            # If this coroutine was cancelled or timed out, the slot is free for others. The thread
            # looks at the future between two rounds; it cannot be interrupted within one.
            request.future.cancel()
            # The traceback of an error would keep the weights in memory.
            del request, weights

    def snapshot(self) -> Snapshot:
        """Fixes the newest weights, which stay in memory as long as the snapshot exists."""
        assert self._newest is not None
        generate = functools.partial(self.generate, weights=self._newest)
        return Snapshot(generate, self.end_session)

    def end_session(self, session: Session) -> None:
        """Frees the slot that waits for a session's next prompt."""
        if self._held is not None:
            self._held.end_session(session)

    def update_weights(
        self, params: decoder.Params, version: int, *, inflight: bool = False
    ) -> None:
        """Sets the weights of later requests; all hosts must call it in the same order.

        With `inflight`, earlier requests, running or waiting, go on with these weights, behind the
        keys and values that the old ones left; otherwise they keep their own.

        Raises:
          ValueError: The tree has another structure, shape or dtype.
        """
        check_leaves(self._leaf_types, params, version)
        # The device lock waits for the end of a round: no program reads the weights then. The order
        # of the two locks is the same everywhere, or two threads could wait for each other.
        with self._device_lock, self._wake:
            # A cancelled request must not keep the old weights in memory.
            self._drop_cancelled()
            if not (self._waiting or self._table.any_active()):
                # Frees the old arrays before the new ones are made.
                self._newest = None
                self._weights = None
                self._forget_cache()
            self._newest = Weights(self._programs.prepare_params(params), version)
            if inflight:
                for request in (*self._waiting, *self._table.requests):
                    if request is not None:
                        request.weights = self._newest
                self._weights = self._newest
                # Running requests go on with what their slots hold, but no new prompt may read it.
                self._forget_cache()

    def free_memory(self) -> None:
        """Frees weights and cache until the next `update_weights`; unfinished requests fail."""
        with self._device_lock, self._wake:
            self._drop_cancelled()
            self._fail_requests("the engine frees its memory for an update")
            self._newest = None
            self._weights = None
            self._programs.reset()
            self._forget_cache()

    def close(self) -> None:
        """Stops the thread and frees the cache; unfinished requests fail. May be called twice."""
        with self._wake:
            # The thread sees this at the end of its round at the latest, and fails what is
            # unfinished.
            self._closed = True
            self._wake.notify()
        # A thread that joins itself raises.
        if self._thread is not threading.current_thread():
            # With a limit, because a device call cannot be interrupted and may never return.
            self._thread.join(JOIN_LIMIT_S)

    # All methods below run in the engine's thread or under its locks, except `_make_request`.

    def _make_request(
        self,
        tokens: Tokens,
        params: SamplingParams,
        images: "PromptImages | None",
        weights: Weights | None,
    ) -> Request:
        prompt = check_prompt(
            tokens,
            params,
            max_length=self._max_length,
            max_prompt=self._max_prompt,
            vocab_size=self.config.vocab_size,
        )
        # A row of a `PromptBatch` has room for so many ids; the shapes of programs are fixed.
        stop_ids = select_stop_ids(params, self._stops, limit=STOP_IDS)
        weights = weights or self._newest
        if weights is None:
            raise RuntimeError("the engine has no weights during an update; ask again later")
        if images is not None or self.config.vision is not None:
            from gigpo_jax.engines.prompt_images import check_images

            images = check_images(self.config.vision, prompt, images)
        return Request(prompt, params, stop_ids, weights, Future(), images)

    def _serve_requests(self) -> None:
        """Runs rounds until the engine is closed, as the body of the thread."""
        while True:
            with self._wake:
                while not (self._closed or self._waiting or self._table.any_active()):
                    # Without a limit: `generate` and `close` alone can end the condition, and both
                    # notify.
                    self._wake.wait()
                if self._closed:
                    break
            # Not under `_wake`: `generate` could not add the requests that are waited for.
            self._gather_requests()
            try:
                with self._device_lock:
                    self._run_round()
            # The device may raise anything; the requests in the slots must fail with it.
            except Exception as err:
                log.exception("the engine failed")
                self._fail_requests(f"the engine failed: {err}", err)
                # The failed call may have consumed the donated cache; the next round makes another.
                self._programs.reset()
                # The tables must not promise tokens of a cache that is gone.
                self._forget_cache()
        self._fail_requests("the engine was closed")
        self._programs.reset()
        self._newest = None
        self._weights = None

    def _gather_requests(self) -> None:
        """Waits a moment if the engine is idle: requests that arrive together share a batch."""
        if self._table.any_active():
            return
        deadline = time.monotonic() + GATHER_LIMIT_S
        previous_count = 0
        # Without the wait the first of many requests would be prefilled and decoded alone.
        while previous_count < len(self._waiting) < self.slots and time.monotonic() < deadline:
            # Read without `_wake`: a number that is out of date only changes the wait by
            # `GATHER_S`.
            previous_count = len(self._waiting)
            time.sleep(GATHER_S)

    def _run_round(self) -> None:
        self._drop_cancelled()
        self._read_prompts()
        if not self._table.any_active():
            return

        # Returns to the waiting requests once an eighth of the slots is free for them. A request
        # with newer weights cannot start before all slots are free: it ends no round early.
        startable = sum(request.weights is self._weights for request in tuple(self._waiting))
        # No number of ended slots reaches slots + 1: the call then makes all of its steps.
        target = self.slots + 1
        if startable:
            target = max(1, min(startable, self.slots // 8))
        # Every partition counts its own slots, hence an equal share of the number, rounded up.
        drawn = self._decode(-(-target // self._partitions))
        self._collect_tokens(drawn, range(self.slots))

    def _read_prompts(self) -> None:
        """Prefills waiting prompts into free slots, but for tokens that slots hold."""
        free_slots = self._table.free_slots()
        requests = self._take_requests(len(free_slots))
        if self._held is not None:
            # Behind `_take_requests`: a request may be there because the end of an episode made
            # room for its own, and that end is then known too.
            self._held.free_sessions()
        if not requests:
            return
        assert self._weights is not None
        reader: Any = self._reader
        placed: Sequence[tuple[Any, Request]] = list(zip(free_slots, requests))
        starts = [0] * len(requests)
        if self._held is None:
            for slot, request in placed:
                self._assign_slot(slot, request)
        else:
            reader = self._held.reader
            placed = self._held.place_prefills(requests, self._table.free_slots, self._assign_slot)
            starts = [prefill.start for prefill, _ in placed]
        self.reused_tokens += sum(starts)
        if self._encoder is not None:
            placed_requests = (request for _, request in placed)
            unread = list(zip(placed_requests, starts, strict=True))
            self._encoder.encode_requests(self._weights.params, unread)
        for drawn, slots in reader.read_prompts(self._weights.params, placed):
            self._collect_tokens(np.asarray(drawn)[:, None], slots)

    def _assign_slot(self, slot: int, request: Request) -> None:
        self._table.assign(slot, request)
        self._programs.cuts_tokens |= request.params.cuts_tokens
        self.prompt_tokens += request.prompt.size

    def _take_requests(self, limit: int) -> list[Request]:
        """Removes waiting requests that can start; new weights wait until all slots are free."""
        requests: list[Request] = []
        # Without `_wake`: only this thread and holders of the device lock remove requests, and
        # `generate` appends at the other end.
        while self._waiting and len(requests) < limit:
            # Strictly in the order of arrival: skipping a request that must wait for newer weights
            # would let a stream of later ones keep it waiting for ever.
            request = self._waiting[0]
            if request.weights is not self._weights:
                if requests or self._table.any_active():
                    break
                # All slots of a device call share one tree of weights, and no response mixes two
                # versions.
                self._weights = request.weights
                # The cache and the image features were computed with the previous weights.
                self._forget_cache()
            requests.append(self._waiting.popleft())
        return requests

    def _forget_cache(self) -> None:
        """Forgets what slots hold, and image features."""
        if self._held is not None:
            self._held.clear()
        if self._encoder is not None:
            self._encoder.clear()

    def _collect_tokens(self, drawn: Any, slots: Sequence[int | None]) -> None:
        """Adds drawn tokens, [2 or 3, steps, B] of B slots, to requests; resolves finished ones."""
        # One array for tokens and the bits of their scores: one transfer instead of several.
        tokens, *bits = np.asarray(drawn)
        scores = np.stack(bits).view(np.float32)
        # A slot draws in every step until it ends, so its tokens are the first ones of its column.
        counts = np.sum(tokens != NO_TOKEN, axis=0).tolist()
        ended = []
        for column, slot in enumerate(slots):
            request = None if slot is None else self._table.requests[slot]
            count = counts[column]
            if slot is None or request is None or not count:
                continue
            completion = request.append_tokens(
                tokens[:count, column], scores[:, :count, column], self._stops
            )
            if completion is not None:
                # After a stop string the slot is still active on the device; the next call cancels
                # it there.
                self._table.release(slot)
                if self._held is not None:
                    self._held.keep(slot, request, completion)
                self.generated_tokens += completion.tokens.size
                ended.append((slot, request, completion))
        if self._keeps_routes:
            from gigpo_jax.engines.jax.slot_routes import read_slot_routes

            ended = read_slot_routes(self._programs, ended, self._partitions, self.slots)
        for _, request, completion in ended:
            request.resolve(completion)

    def _drop_cancelled(self) -> None:
        self._table.release_cancelled()
        with self._wake:
            # The lock is reentrant: `update_weights` and `free_memory` hold it already.
            self._waiting = collections.deque(
                request for request in self._waiting if not request.cancelled
            )

    def _fail_requests(self, message: str, cause: Exception | None = None) -> None:
        """Fails all requests; after an error of the device, those that may have caused it."""
        failed = self._table.remove_requests()
        with self._wake:
            # With no request in a slot the first one failed on its way: it would fail again.
            while self._waiting and (cause is None or not failed):
                failed.append(self._waiting.popleft())
        for request in failed:
            request.reject(message, cause)

    def _decode(self, target: int) -> jax.Array:
        """Decodes until `target` slots of a partition are done, at most the settings' steps."""
        assert self._weights is not None
        running = self._table.running.reshape(self._partitions, -1)
        # One array a call, the target first: a transfer to the device costs more than its content.
        control = np.insert(running, 0, target, axis=1)
        return self._programs.decode_tokens(self._weights.params, control.reshape(-1))
