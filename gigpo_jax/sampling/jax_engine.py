"""The in-process engine: continuous batching over a fixed number of slots with a static KV cache.

A thread of its own drives the device, so the event loop that asks for replies goes on serving environments. Every
round reads waiting prompts into free slots (padded to one of a few shapes), then draws several tokens for all slots in
one call. All programs are compiled by `warmup`; nothing compiles after it, because the engine only ever calls the
compiled executables.

What a request gets does not depend on what else is in the batch: its keys come from the request alone, and every row
of a batch is computed for itself. The rounding of a row can still differ in its last bits between prefill batches of
different size, as matrix products are tiled differently.
"""

import asyncio
import collections
import functools
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gigpo_jax.errors import InputError
from gigpo_jax.models import qwen2
from gigpo_jax.sampling import slots as device
from gigpo_jax.sampling.base import Completion, FinishReason, SamplingParams
from gigpo_jax.sampling.stopping import Decoder, StopStrings

GATHER_S = 0.001  # an idle engine waits this long for company, and again while more arrive
GATHER_LIMIT_S = 0.01
REQUEST_LIMIT_S = 3600.0
JOIN_LIMIT_S = 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Weights:
    params: Any
    version: int


@dataclass(eq=False)
class _Request:
    """One reply in the making; touched by the engine's thread alone, but for `cancelled`."""

    prompt: np.ndarray
    params: SamplingParams
    stop_ids: list[int]
    watch: tuple[str, ...]
    weights: _Weights
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Completion]"
    tokens: list[int] = field(default_factory=list)
    logprobs: list[np.ndarray] = field(default_factory=list)
    cancelled: bool = False


class JaxEngine:
    """Samples replies from a model in this process; see `sampling.base.Engine`.

    Attributes:
      compile_count: programs compiled so far; constant after `warmup`.
      generated_tokens: tokens drawn and handed out so far.
      prefill_tokens: prompt tokens read so far, padding left out.
      prefill_padding: padding read beside them.
    """

    def __init__(
        self,
        config: qwen2.Qwen2Config,
        params: qwen2.Params,
        *,
        tokenizer: Decoder | None = None,
        slots: int = 128,
        max_length: int = 1024,
        prefill_buckets: Sequence[int] = (),
        prefill_rows: Sequence[int] = (4, 32),
        decode_steps: int = 16,
        dtype: Any = None,
        mesh: Mesh | None = None,
        version: int = 0,
    ):
        """Makes an engine and starts its thread; call `close` when done.

        Args:
          config: the model's shape.
          params: its parameters, as from `qwen2.init`; used as they are, not copied, unless `dtype` differs. Whoever
            donates these arrays elsewhere must call `update_weights` before the next request.
          tokenizer: decodes replies for stop strings; None if no request has any.
          slots: S, sequences that are decoded together.
          max_length: prompt and reply together have at most this many tokens; the length of the cache.
          prefill_buckets: prompt lengths to compile for, each at most `max_length`; empty for powers of two up to it.
          prefill_rows: prompts read at once, each a shape to compile for.
          decode_steps: tokens drawn for a slot between two looks at the host, at most.
          dtype: what to compute in and keep the cache in; None is the parameters'.
          mesh: over which the cache is spread, by key/value heads along its axis `tensor`; None takes the mesh of the
            parameters' shardings, if they have one.
          version: of these parameters.

        Raises:
          InputError: a number that makes no sense.
        """
        self._buckets = _buckets(prefill_buckets, max_length)
        self._rows = tuple(sorted({min(rows, slots) for rows in prefill_rows}))
        if slots < 1 or decode_steps < 1 or not self._rows or self._rows[0] < 1:
            raise InputError(f"slots={slots}, decode_steps={decode_steps}, prefill_rows={prefill_rows}: must be >= 1")
        self.config, self.slots, self.max_length = config, slots, max_length
        self.compile_count = self.generated_tokens = self.prefill_tokens = self.prefill_padding = 0
        self._decode_steps = decode_steps
        self._dtype = jnp.dtype(dtype or params["embed"].dtype)
        self._mesh = mesh or _mesh_of(params)
        self._stops = StopStrings(tokenizer, config.vocab_size) if tokenizer is not None else None
        self._programs: dict[tuple[int, int] | str, Any] = {}
        self._newest = _Weights(params, version)
        self._weights: _Weights | None = None
        self._ready: Any = None
        self._cache: Any = None
        self._state: Any = None
        self._slots: list[_Request | None] = [None] * slots
        self._keep = np.ones((slots,), np.int32)
        self._waiting: collections.deque[_Request] = collections.deque()
        self._wake = threading.Condition()
        self._device_lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="jax-engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> "JaxEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warmup(self) -> None:
        """Compiles every program there is; without it each compiles when it is first needed."""
        with self._device_lock:
            self._use(self._weights or self._newest)
            for length in self._buckets:
                for rows in self._rows:
                    nobody = np.zeros((rows, device.SETTINGS + device.STOP_IDS + length), np.int32)
                    nobody[:, 0] = self.slots
                    self._admit(nobody)
            self._advance(1)

    async def generate(self, tokens: Sequence[int] | np.ndarray, params: SamplingParams) -> Completion:
        """Samples one reply, batched with whatever else waits.

        Args:
          tokens: [P] the prompt's token ids, 1 <= P <= max_length - params.max_tokens.
          params: how to sample.

        Returns:
          The reply, and the version of the weights that were the newest when this was called.

        Raises:
          InputError: the prompt does not fit, or a setting cannot be met; only this request fails.
          RuntimeError: the engine was closed or its device failed.
          TimeoutError: no reply within an hour.
        """
        loop = asyncio.get_running_loop()
        request = self._request(tokens, params, loop)
        with self._wake:
            if self._closed:
                raise RuntimeError("the engine is closed")
            self._waiting.append(request)
            self._wake.notify()
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                return await request.future
        finally:
            # Only matters when this coroutine was cancelled or ran out of time: its slot is for others.
            request.cancelled = True

    def update_weights(self, params: qwen2.Params, version: int) -> None:
        """Requests made from now on use `params`; those under way or waiting finish with what they started from.

        Args:
          params: a tree like the one given at the start. Nothing is copied.
          version: returned with every completion.

        Raises:
          ValueError: a tree of another structure, shape or dtype.
        """
        here, there = _described(self._newest.params), _described(params)
        if here != there:
            raise ValueError(f"version {version}: parameters unlike those of the engine: {_difference(here, there)}")
        with self._wake:
            self._newest = _Weights(params, version)

    def close(self) -> None:
        """Stops the thread and frees the cache; requests that still wait fail with a message. May be called twice."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_LIMIT_S)

    # What follows runs in the engine's thread, but for `_request`.

    def _request(
        self, tokens: Sequence[int] | np.ndarray, params: SamplingParams, loop: asyncio.AbstractEventLoop
    ) -> _Request:
        prompt = np.asarray(tokens, np.int32)
        limit = min(self.max_length - params.max_tokens, self._buckets[-1])
        if prompt.ndim != 1 or not 1 <= prompt.size <= limit:
            raise InputError(
                f"prompt of {prompt.size} tokens: with max_tokens={params.max_tokens} and max_length={self.max_length} "
                f"the engine takes 1 to {max(limit, 0)}; shorten the prompt or the reply"
            )
        if prompt.min() < 0 or prompt.max() >= self.config.vocab_size:
            raise InputError(f"prompt has token id {prompt.max()}: the model has ids 0 to {self.config.vocab_size - 1}")
        stop_ids = list(params.stop_token_ids)
        if params.stop_strings:
            if self._stops is None:
                raise InputError(f"stop_strings={params.stop_strings}: this engine has no tokenizer to find them with")
            single = [self._stops.single_token(stop) for stop in params.stop_strings]
            stop_ids += [token for token in single if token is not None]
        stop_ids = list(dict.fromkeys(stop_ids))
        if len(stop_ids) > device.STOP_IDS:
            raise InputError(f"stop_token_ids: {len(stop_ids)} ids; an engine takes at most {device.STOP_IDS}")
        return _Request(prompt, params, stop_ids, params.stop_strings, self._newest, loop, loop.create_future())

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._closed or self._waiting or self._active()):
                    self._wake.wait()
                if self._closed:
                    break
            self._gather()
            try:
                with self._device_lock:
                    self._round()
            except Exception as err:  # whatever the device raises must reach those who wait
                log.exception("the engine failed")
                self._fail(f"the engine failed: {err}", err, everyone=False)
                self._cache = self._state = None
        self._fail("the engine was closed", None, everyone=True)
        self._cache = self._state = self._ready = self._weights = None
        self._programs.clear()

    def _active(self) -> bool:
        return any(request is not None for request in self._slots)

    def _gather(self) -> None:
        """An idle engine waits for the requests that come together with the first."""
        if self._active():
            return
        deadline, seen = time.monotonic() + GATHER_LIMIT_S, 0
        while seen < len(self._waiting) < self.slots and time.monotonic() < deadline:
            seen = len(self._waiting)
            time.sleep(GATHER_S)

    def _round(self) -> None:
        for slot, request in enumerate(self._slots):
            if request is not None and request.cancelled:
                self._release(slot)
        self._read_prompts()
        if not self._active():
            return
        same = sum(request.weights is self._weights for request in tuple(self._waiting))
        target = max(1, min(same, self.slots // 8)) if same else self.slots + 1
        out = self._advance(target)
        self._collect(out)

    def _read_prompts(self) -> None:
        """Reads as many waiting prompts as there are free slots, prompts of similar length together."""
        groups: dict[int, list[_Request]] = {}
        free = [slot for slot, request in enumerate(self._slots) if request is None]
        for _ in range(len(free)):
            request = self._next()
            if request is None:
                break
            bucket = next(length for length in self._buckets if length >= request.prompt.size)
            groups.setdefault(bucket, []).append(request)
        pending = []
        for bucket, requests in sorted(groups.items()):
            while requests:
                size = next((rows for rows in self._rows if rows >= len(requests)), self._rows[-1])
                batch, requests = requests[:size], requests[size:]
                taken, free = free[: len(batch)], free[len(batch) :]
                pending.append((taken, self._admit(self._packed(batch, taken, size, bucket))))
        for taken, out in pending:
            self._collect(np.asarray(out)[:, None], taken)

    def _next(self) -> _Request | None:
        """The first waiting request that can start now; new weights wait until nobody uses the old ones."""
        while self._waiting:
            request = self._waiting[0]
            if not request.cancelled:
                if request.weights is not self._weights:
                    if self._active():
                        return None
                    self._use(request.weights)
                return self._waiting.popleft()
            self._waiting.popleft()
        return None

    def _packed(self, batch: list[_Request], taken: list[int], size: int, bucket: int) -> np.ndarray:
        rows = np.zeros((size, device.SETTINGS + device.STOP_IDS + bucket), np.int32)
        rows[:, 0] = self.slots
        for row, request, slot in zip(rows, batch, taken):
            device.pack_request(row, request.prompt, slot, request.params, request.stop_ids)
            self._slots[slot], self._keep[slot] = request, 1
            self.prefill_tokens += request.prompt.size
        self.prefill_padding += size * bucket - sum(request.prompt.size for request in batch)
        return rows

    def _collect(self, out: Any, taken: Sequence[int] | None = None) -> None:
        """Hands drawn tokens [2, steps, S] (of the slots `taken`, or of all) to their requests, finished ones out."""
        tokens, bits = np.asarray(out)
        logprobs = bits.view(np.float32)
        counts = np.sum(tokens != device.NOTHING, axis=0).tolist()
        done: dict[asyncio.AbstractEventLoop, list[tuple[_Request, Completion]]] = {}
        for column, slot in enumerate(range(self.slots) if taken is None else taken):
            request, count = self._slots[slot], counts[column]
            if request is None or not count:
                continue
            start = len(request.tokens)
            request.tokens += tokens[:count, column].tolist()
            request.logprobs.append(logprobs[:count, column])
            reason, length = self._verdict(request, start)
            if reason is not None:
                self._release(slot)
                done.setdefault(request.loop, []).append((request, _completion(request, reason, length)))
                self.generated_tokens += length
        for loop, replies in done.items():
            _call(loop, functools.partial(_resolve, replies))

    def _verdict(self, request: _Request, start: int) -> tuple[FinishReason | None, int]:
        """Whether a request is finished, and with how many tokens."""
        if request.watch and self._stops is not None:
            end = self._stops.completed_at(request.tokens, start, request.watch)
            if end is not None:
                return "stop", end + 1
        if request.tokens[-1] in request.stop_ids:
            return "stop", len(request.tokens)
        if len(request.tokens) >= request.params.max_tokens:
            return "length", len(request.tokens)
        return None, 0

    def _release(self, slot: int) -> None:
        self._slots[slot] = None
        self._keep[slot] = 0

    def _fail(self, message: str, cause: Exception | None, *, everyone: bool) -> None:
        failed = [request for request in self._slots if request is not None]
        self._slots = [None] * self.slots
        with self._wake:
            if everyone:
                failed += self._waiting
                self._waiting.clear()
            elif not failed and self._waiting:
                failed.append(self._waiting.popleft())
        for request in failed:
            _call(request.loop, functools.partial(_reject, request, message, cause))

    def _use(self, weights: _Weights) -> None:
        if weights is self._weights:
            return
        self._weights = self._ready = None  # what is not used any more can be freed before more is made
        params = weights.params
        if any(leaf.dtype != self._dtype for leaf in jax.tree.leaves(params)):
            params = self._program("cast", self._cast, params)(params)
        self._weights, self._ready = weights, params

    def _cast(self, params: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.astype(self._dtype), params)

    def _admit(self, rows: np.ndarray) -> jax.Array:
        cache, state = self._device_state()
        step = functools.partial(device.admit, functools.partial(qwen2.prefill, self.config))
        program = self._program(rows.shape, step, self._ready, cache, state, rows)
        self._cache, self._state, out = program(self._ready, cache, state, rows)
        return out

    def _advance(self, target: int) -> jax.Array:
        cache, state = self._device_state()
        control = np.concatenate([np.array([target], np.int32), self._keep])
        step = functools.partial(device.advance, functools.partial(qwen2.decode, self.config), self._decode_steps)
        program = self._program("advance", step, self._ready, cache, state, control)
        self._cache, self._state, out = program(self._ready, cache, state, control)
        return out

    def _device_state(self) -> tuple[Any, Any]:
        if self._cache is None:
            cache, state = self._shardings()
            make = functools.partial(qwen2.init_cache, self.config, self.slots, self.max_length, self._dtype)
            self._cache = self._program("cache", jax.jit(make, out_shardings=cache))()
            self._state = self._program(
                "slots", jax.jit(functools.partial(device.init_slots, self.slots), out_shardings=state)
            )()
        return self._cache, self._state

    def _shardings(self) -> tuple[Any, Any]:
        """Of the cache [L, S, G, C, K] and of everything else; None without a mesh."""
        if self._mesh is None:
            return None, None
        split = dict(self._mesh.shape).get("tensor", 1)
        heads = "tensor" if split > 1 and self.config.num_kv_heads % split == 0 else None
        return (
            NamedSharding(self._mesh, PartitionSpec(None, None, heads)),
            NamedSharding(self._mesh, PartitionSpec()),
        )

    def _program(self, name: Any, function: Any, *args: Any) -> Any:
        """Returns the compiled program of that name; compiles it, once."""
        if name not in self._programs:
            if args[1:]:  # a step: cache and slots are updated in place
                cache, rest = self._shardings()
                out = None if self._mesh is None else (cache, rest, rest)
                function = jax.jit(function, donate_argnums=(1, 2), out_shardings=out)
            elif args:
                function = jax.jit(function)
            self._programs[name] = function.lower(*args).compile()
            self.compile_count += 1
        return self._programs[name]


def _completion(request: _Request, reason: FinishReason, length: int) -> Completion:
    return Completion(
        tokens=np.array(request.tokens[:length], np.int32),
        logprobs=np.concatenate(request.logprobs)[:length],
        finish_reason=reason,
        version=request.weights.version,
    )


def _call(loop: asyncio.AbstractEventLoop, function: Any) -> None:
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:  # that loop is closed: nobody waits there any more
        log.debug("a reply came after its event loop was closed")


def _resolve(replies: list[tuple[_Request, Completion]]) -> None:
    for request, completion in replies:
        if not request.future.done():
            request.future.set_result(completion)


def _reject(request: _Request, message: str, cause: Exception | None) -> None:
    if not request.future.done():
        error = RuntimeError(message)
        error.__cause__ = cause
        request.future.set_exception(error)


def _buckets(lengths: Sequence[int], max_length: int) -> tuple[int, ...]:
    if not lengths:
        lengths = [min(2**power, max_length) for power in range(5, max(6, (max_length - 1).bit_length() + 1))]
    buckets = tuple(sorted(set(lengths)))
    if max_length < 2 or buckets[0] < 1 or buckets[-1] > max_length:
        raise InputError(f"prefill_buckets={tuple(lengths)}: must lie between 1 and max_length={max_length}")
    return buckets


def _mesh_of(params: Any) -> Mesh | None:
    for leaf in jax.tree.leaves(params):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            return sharding.mesh  # type: ignore[return-value]
    return None


def _described(params: Any) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}


def _difference(here: dict[str, str], there: dict[str, str]) -> str:
    path = next(path for path in sorted(here | there) if here.get(path) != there.get(path))
    return f"{path} is {there.get(path, 'missing')}, was {here.get(path, 'missing')}"
