"""Worker processes that play episodes, as asyncio handles.

Every worker is a fresh interpreter (never a fork: jax and its threads live in this process) that hosts many
environments and answers calls in order. A worker that dies or does not answer within its limit is replaced; the
episodes it hosted get an `EnvError`, the others go on. There are no threads here: the pool reads its sockets from the
running event loop, and may be used by one loop after the other, from one thread.
"""

import asyncio
import logging
import os
import pathlib
import selectors
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gigpo_jax.env_bridge import registry
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task
from gigpo_jax.env_bridge.worker import Setup, pack, unpack
from gigpo_jax.errors import InputError

_LOG = logging.getLogger(__name__)
_ROOT = str(pathlib.Path(__file__).resolve().parents[2])
_BOOT = (
    "import sys; root, descriptor, parent = sys.argv[1:]; sys.path.insert(0, root); "
    "from gigpo_jax.env_bridge.worker import main; main(int(descriptor), int(parent))"
)
_CLOSE_S = 3.0  # how long workers get to close their environments
_STARTS = 3  # a worker that fails to start so often in a row is given up
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # parallelism is one process a worker


@dataclass(eq=False)
class _Call:
    """A call that a worker has not answered yet; `started` (s, monotonic) is when it came to the front."""

    number: int
    what: str
    limit_s: float
    future: "asyncio.Future[Any] | None" = None
    started: float | None = None
    kind: str | None = None
    value: Any = None


@dataclass(eq=False)
class _Worker:
    """This side of a worker process."""

    index: int
    process: "subprocess.Popen[bytes]"
    socket: socket.socket
    ready: bool = False
    writing: bool = False
    failure: str | None = None
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    calls: deque[_Call] = field(default_factory=deque)


class PooledEnv:
    """One environment of the pool, lent to one episode."""

    def __init__(self, pool: "EnvPool", index: int, slot: int) -> None:
        self._pool, self._index, self._slot = pool, index, slot
        self._worker: _Worker | None = None

    async def reset(self, task: Task) -> Observation:
        """Starts an episode.

        Raises:
          EnvError: the environment raised, or its worker died or did not answer in time.
        """
        self._worker = self._pool._workers[self._index]
        return await self._pool._ask(self._worker, "reset", self._slot, task, self._pool.start_timeout_s)

    async def step(self, action: str) -> StepResult:
        """Acts.

        Raises:
          EnvError: as `reset`; also when the worker was replaced since `reset`.
        """
        if self._worker is None:
            raise RuntimeError("step before reset")
        return await self._pool._ask(self._worker, "step", self._slot, action, self._pool.step_timeout_s)

    def release(self) -> None:
        """Gives the environment back; may be called twice."""
        if self._slot >= 0:
            self._pool._give(self._index, self._slot)
            self._slot, self._worker = -1, None


class EnvPool:
    """A fixed number of environments in worker processes.

    Attributes:
      size: how many episodes can be played at once.
      replaced: how many workers were replaced so far.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any] | None = None,
        *,
        workers: int = 2,
        envs_per_worker: int = 16,
        start_timeout_s: float = 60.0,
        step_timeout_s: float = 30.0,
    ) -> None:
        """Starts the workers and waits until each has built an environment.

        Args:
          name: the environment, as in the registry.
          options: what its builder takes; plain values.
          workers: processes, >= 1.
          envs_per_worker: environments in each, >= 1.
          start_timeout_s: limit for a worker to be ready, for `tasks` and for a reset, s.
          step_timeout_s: limit for a step, s. A call's time counts from when its worker turns to it.

        Raises:
          InputError: what is wrong with the name, the options, or what the environment needs.
          EnvError: a worker did not come up for another reason.
        """
        if workers < 1 or envs_per_worker < 1:
            raise InputError(f"env.workers={workers}, env.envs_per_worker={envs_per_worker}: both must be at least 1")
        registry.spec(name)
        self.size, self.replaced = workers * envs_per_worker, 0
        self.start_timeout_s, self.step_timeout_s = start_timeout_s, step_timeout_s
        self._setup = Setup(name, dict(options or {}), tuple(sys.path))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsent: list[_Worker] = []
        self._watch: asyncio.TimerHandle | None = None
        self._tasks: dict[str, list[Task]] = {}
        self._number, self._up, self._closed = 0, False, False
        self._failed_starts, self._given_up = [0] * workers, ""
        self._free = deque((index, slot) for slot in range(envs_per_worker) for index in range(workers))
        self._waiting: deque[asyncio.Future[tuple[int, int]]] = deque()
        self._workers: list[_Worker] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._finish = weakref.finalize(self, _stop, self._workers, self._processes)
        try:
            calls = [self._start(index) for index in range(workers)]
            for call in calls:
                self._wait(call)
            self._up = True
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers."""
        return tuple(worker.process.pid for worker in self._workers)

    def __enter__(self) -> "EnvPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tasks(self, split: str) -> list[Task]:
        """The tasks of a split, in the environment's order; blocks for up to `start_timeout_s` the first time.

        Raises:
          InputError: what the environment says of a split it does not have, or of missing data.
          EnvError: the worker failed.
        """
        if split not in self._tasks:
            self._raise_if_closed()
            call = self._send(self._workers[0], "tasks", 0, split, self.start_timeout_s)
            self._tasks[split] = self._wait(call)
        return self._tasks[split]

    async def acquire(self) -> PooledEnv:
        """Waits for a free environment, first come, first served.

        Raises:
          EnvError: every worker was given up.
        """
        self._attach()
        if self._free:
            return PooledEnv(self, *self._free.popleft())
        if self._all_given_up():
            raise EnvError(f"no environment worker is left: {self._given_up}")
        future: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            return PooledEnv(self, *await future)
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._give(*future.result())
            raise

    @asynccontextmanager
    async def episode(self) -> AsyncIterator[PooledEnv]:
        """`acquire` and `release` as one block."""
        environment = await self.acquire()
        try:
            yield environment
        finally:
            environment.release()

    def close(self) -> None:
        """Ends every worker; whoever still waits gets an `EnvError`. May be called twice."""
        self._closed = True
        for worker in self._workers:
            self._fail(worker, "the environment pool was closed")
        self._wake_waiting(EnvError("the environment pool was closed"))
        if self._watch is not None:
            self._watch.cancel()
        self._finish()

    # Slots

    def _give(self, index: int, slot: int) -> None:
        """Takes a slot back, or lends it on."""
        if self._failed_starts[index] >= _STARTS:
            return
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done() and future.get_loop() is self._loop:
                future.set_result((index, slot))
                return
        self._free.append((index, slot))

    def _wake_waiting(self, error: EnvError) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done() and not future.get_loop().is_closed():
                future.set_exception(error)

    def _all_given_up(self) -> bool:
        return all(count >= _STARTS for count in self._failed_starts)

    # Calls

    async def _ask(self, worker: _Worker, what: str, slot: int, argument: Any, limit_s: float) -> Any:
        self._raise_if_closed()
        loop = self._attach()
        if worker.failure is not None:
            raise EnvError(worker.failure)
        call = self._send(worker, what, slot, argument, limit_s, loop.create_future())
        assert call.future is not None
        return await call.future

    def _send(
        self,
        worker: _Worker,
        what: str,
        slot: int,
        argument: Any,
        limit_s: float,
        future: "asyncio.Future[Any] | None" = None,
    ) -> _Call:
        """Queues a call; in a loop it leaves at the end of this tick, with all others of the tick."""
        self._number += 1
        call = _Call(self._number, what, limit_s, future)
        self._enqueue(worker, call, pack((call.number, what, slot, argument)))
        if future is not None:
            if not self._unsent:
                future.get_loop().call_soon(self._flush_all)
            self._unsent.append(worker)
            if self._watch is None:
                self._watch_later()
        return call

    def _enqueue(self, worker: _Worker, call: _Call, frame: bytes) -> None:
        if not worker.calls:
            call.started = time.monotonic()
        worker.calls.append(call)
        worker.outbox += frame

    def _settle(self, call: _Call, kind: str, value: Any) -> None:
        call.kind, call.value = kind, value
        future = call.future
        if future is None or future.done() or future.get_loop().is_closed():
            return
        if kind == "ok":
            future.set_result(value)
        else:
            future.set_exception(EnvError(value))

    def _wait(self, call: _Call) -> Any:
        """Blocks until a call is answered, reading all sockets meanwhile."""
        while call.kind is None:
            for worker in list(self._workers):
                self._flush(worker)
            with selectors.DefaultSelector() as selector:
                for worker in self._workers:
                    if worker.failure is None:
                        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.outbox else 0)
                        selector.register(worker.socket, events, worker)
                ready = selector.select(0.1)
            for key, _ in ready:
                self._read(key.data)
            self._check_limits()
        if call.kind == "input":
            raise InputError(call.value)
        if call.kind == "error":
            raise EnvError(call.value)
        return call.value

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise EnvError("the environment pool was closed")

    # Sockets

    def _attach(self) -> asyncio.AbstractEventLoop:
        """Reads from the loop that is running now."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            for worker in self._workers:
                self._detach(worker)
            self._loop, self._watch = loop, None
            self._unsent.clear()
            for worker in self._workers:
                self._register(worker)
        return loop

    def _register(self, worker: _Worker) -> None:
        if self._loop is not None and not self._loop.is_closed() and worker.failure is None:
            self._loop.add_reader(worker.socket, self._read, worker)
            self._write_later(worker)

    def _detach(self, worker: _Worker) -> None:
        if self._loop is not None and not self._loop.is_closed() and worker.socket.fileno() >= 0:
            self._loop.remove_reader(worker.socket)
            self._loop.remove_writer(worker.socket)
        worker.writing = False

    def _write_later(self, worker: _Worker) -> None:
        """Asks the loop to go on sending when there is something left, and to stop when there is not."""
        wanted = bool(worker.outbox)
        if wanted == worker.writing or self._loop is None or self._loop.is_closed():
            return
        worker.writing = wanted
        if wanted:
            self._loop.add_writer(worker.socket, self._flush, worker)
        else:
            self._loop.remove_writer(worker.socket)

    def _flush_all(self) -> None:
        workers, self._unsent = self._unsent, []
        for worker in dict.fromkeys(workers):
            self._flush(worker)

    def _flush(self, worker: _Worker) -> None:
        """Sends what the socket takes now; the rest when it takes more."""
        if not worker.outbox or worker.failure is not None:
            return
        try:
            sent = worker.socket.send(worker.outbox)
            del worker.outbox[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._lose(worker, "died")
            return
        self._write_later(worker)

    def _read(self, worker: _Worker) -> None:
        """Takes in whatever answers have come."""
        if worker.failure is not None:
            return
        try:
            data = worker.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose(worker, "died")
            return
        worker.inbox += data
        try:
            answers = unpack(worker.inbox)
        except Exception as err:  # a pickle of things that only the worker can import
            self._lose(worker, f"sent an answer that cannot be read ({type(err).__name__}: {err})")
            return
        for number, kind, value in answers:
            call = worker.calls.popleft()
            assert call.number == number, "answers come in the order of the calls"
            if worker.calls:
                worker.calls[0].started = time.monotonic()
            self._settle(call, kind, value)
            if call.what == "start":
                if kind != "ok":
                    self._lose(worker, f"could not start: {value}")
                    return
                worker.ready, self._failed_starts[worker.index] = True, 0

    # Processes

    def _start(self, index: int) -> _Call:
        """Starts a worker in a place; its setup is its first call."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        threads = {name: os.environ.get(name, "1") for name in _THREADS}
        command = [sys.executable, "-P", "-c", _BOOT, _ROOT, str(theirs.fileno()), str(os.getpid())]
        with theirs:
            process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **threads},
                process_group=0,  # out of reach of a terminal's Ctrl-C
            )
        self._processes[:] = [old for old in self._processes if old.poll() is None] + [process]
        worker = _Worker(index, process, ours)
        if index < len(self._workers):
            self._workers[index] = worker
        else:
            self._workers.append(worker)
        call = _Call(0, "start", self.start_timeout_s)
        self._enqueue(worker, call, pack(self._setup))
        self._flush(worker)
        self._register(worker)
        return call

    def _fail(self, worker: _Worker, reason: str) -> None:
        """Marks a worker as lost and fails its calls."""
        if worker.failure is None:
            worker.failure = reason
            self._detach(worker)
            worker.socket.close()
            while worker.calls:
                self._settle(worker.calls.popleft(), "error", reason)

    def _lose(self, worker: _Worker, how: str) -> None:
        """Replaces a worker that cannot be used any more."""
        if worker.failure is not None:
            return
        doing = f" ({worker.calls[0].what})" if worker.calls else ""
        if how == "died":
            try:
                how = f"died with status {worker.process.wait(timeout=1.0)}"
            except subprocess.TimeoutExpired:
                how = "closed its socket"
        worker.process.kill()
        reason = f"environment worker {worker.index} (process {worker.process.pid}) {how}{doing}"
        self._fail(worker, reason)
        if self._closed or not self._up:
            return  # the constructor reports it
        index = worker.index
        self._failed_starts[index] += not worker.ready
        if self._failed_starts[index] >= _STARTS:
            self._given_up = reason
            _LOG.error("%s; it is given up after %d failed starts", reason, _STARTS)
            self._free = deque(place for place in self._free if place[0] != index)
            if self._all_given_up():
                self._wake_waiting(EnvError(f"no environment worker is left: {reason}"))
            return
        _LOG.warning("%s; a new one takes its place", reason)
        self.replaced += 1
        self._start(index)

    # Limits

    def _watch_later(self) -> None:
        assert self._loop is not None
        delay = min(0.5, self.step_timeout_s / 4, self.start_timeout_s / 4)
        self._watch = self._loop.call_later(delay, self._on_watch)

    def _on_watch(self) -> None:
        self._watch = None
        self._check_limits()
        if any(worker.calls for worker in self._workers) and not self._closed:
            self._watch_later()

    def _check_limits(self) -> None:
        """Replaces workers that are over their limit; what came while this process was busy is read first."""
        for worker in list(self._workers):
            while worker.failure is None and worker.calls:
                waiting = len(worker.calls)
                self._read(worker)
                if len(worker.calls) == waiting:
                    break
            call = worker.calls[0] if worker.calls else None
            if call is not None and call.started is not None and time.monotonic() - call.started > call.limit_s:
                self._lose(worker, f"gave no answer within {call.limit_s:g} s")


def _stop(workers: list[_Worker], processes: "list[subprocess.Popen[bytes]]") -> None:
    """Closes the sockets, waits for the processes and kills those that stay."""
    for worker in workers:
        worker.socket.close()
    deadline = time.monotonic() + _CLOSE_S
    for process in processes:
        try:
            process.wait(timeout=max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=_CLOSE_S)
