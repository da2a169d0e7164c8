"""Environments in worker processes, as asyncio handles.

A worker is a fresh interpreter that hosts many environments. It handles calls in order, except steps that wait for
something outside the process (`TextEnv.step_async`). A worker that dies or exceeds a limit is replaced: its episodes
get an `EnvError`, the others continue. The pool has no threads. It reads its sockets from the running event loop;
several loops may use it one after the other, from one thread.
"""

import asyncio
import logging
import selectors
import sys
import weakref
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gigpo_jax.env_bridge.fresh import FreshProcess
from gigpo_jax.env_bridge.process import Call, Lost, WorkerProcess, stop
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task
from gigpo_jax.env_bridge.worker import Setup
from gigpo_jax.errors import InputError

_LOG = logging.getLogger(__name__)
_STARTS = 3  # failed starts in a row after which a worker is not started again


class PooledEnv:
    """One environment of the pool, in use by one episode."""

    def __init__(self, pool: "EnvPool", index: int, slot: int) -> None:
        self._pool, self._index, self._slot = pool, index, slot
        self._worker: WorkerProcess | None = None

    async def reset(self, task: Task) -> Observation:
        """Starts an episode; raises EnvError if the environment failed, or its worker died or exceeded its limit."""
        self._worker = self._pool._workers[self._index]
        return await self._pool._ask(self._worker, "reset", self._slot, task, self._pool.start_timeout_s)

    async def step(self, action: str) -> StepResult:
        """Acts; raises EnvError as `reset`, or if the worker was replaced since."""
        if self._worker is None:
            raise RuntimeError("step before reset")
        return await self._pool._ask(self._worker, "step", self._slot, action, self._pool.step_timeout_s)

    def release(self) -> None:
        """Returns the environment to the pool; may be called twice."""
        if self._slot >= 0:
            self._pool._give(self._index, self._slot)
            self._slot, self._worker = -1, None


class EnvPool:
    """A fixed number of environments in worker processes.

    Attributes:
      size: episodes that can be played at once.
      replaced: workers that were replaced so far.
    """

    def __init__(
        self,
        build: str,
        options: Mapping[str, Any] | None = None,
        *,
        workers: int = 2,
        envs_per_worker: int = 16,
        start_timeout_s: float = 60.0,
        step_timeout_s: float = 30.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the workers and waits until each has built one environment.

        Args:
          build: "module:NAME" of what builds an environment (`registry.spec(name).build`).
          options: its keyword arguments; plain values.
          workers: processes, >= 1.
          envs_per_worker: environments in each, >= 1.
          start_timeout_s: limit for a worker to be ready, for `tasks` and for a reset, s.
          step_timeout_s: limit for a step, s. The time of a call starts when it is the worker's oldest one.
          environ: environment variables of the workers beside those of this process.

        Raises:
          InputError: a wrong reference or option, or missing data.
          EnvError: a worker did not start for another reason.
        """
        if workers < 1 or envs_per_worker < 1:
            raise InputError(f"workers={workers}, envs_per_worker={envs_per_worker}: both must be at least 1")
        self.size, self.replaced = workers * envs_per_worker, 0
        self.start_timeout_s, self.step_timeout_s = start_timeout_s, step_timeout_s
        self._environ = dict(environ or {})
        self._setup = Setup(build, dict(options or {}), tuple(sys.path))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsent: list[WorkerProcess] = []
        self._watch: asyncio.TimerHandle | None = None
        self._tasks: dict[str, list[Task]] = {}
        self._up, self._closed = False, False
        self._failed_starts, self._given_up = [0] * workers, ""
        self._free = deque((index, slot) for slot in range(envs_per_worker) for index in range(workers))
        self._waiting: deque[asyncio.Future[tuple[int, int]]] = deque()
        self._workers: list[WorkerProcess] = []
        self._processes: list[FreshProcess] = []
        self._finish = weakref.finalize(self, stop, self._workers, self._processes)
        try:
            for index in range(workers):
                self._start(index)
            for worker in self._workers:
                self._wait(worker.start)
            self._up = True
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers."""
        return tuple(worker.pid for worker in self._workers)

    def __enter__(self) -> "EnvPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tasks(self, split: str) -> list[Task]:
        """The tasks of a split, in the environment's order; the first call blocks for up to `start_timeout_s`.

        Raises:
          InputError: no such split, or missing data.
          EnvError: the worker failed.
        """
        if split not in self._tasks:
            self._raise_if_closed()
            call = self._workers[0].call("tasks", 0, split, self.start_timeout_s)
            self._tasks[split] = self._wait(call)
        return self._tasks[split]

    async def acquire(self) -> PooledEnv:
        """Waits for a free environment, first come, first served; raises EnvError if no worker is left."""
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
        """`acquire` and `release` as a block."""
        environment = await self.acquire()
        try:
            yield environment
        finally:
            environment.release()

    def close(self) -> None:
        """Ends all workers; pending calls raise `EnvError`. May be called twice."""
        self._closed = True
        for worker in self._workers:
            self._detach(worker)
            worker.fail("the environment pool was closed")
        self._wake_waiting(EnvError("the environment pool was closed"))
        if self._watch is not None:
            self._watch.cancel()
        self._finish()

    # Slots

    def _give(self, index: int, slot: int) -> None:
        """Hands a slot to the next waiter, or marks it as free."""
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

    async def _ask(self, worker: WorkerProcess, what: str, slot: int, argument: Any, limit_s: float) -> Any:
        """One call; all calls of one loop tick are sent together."""
        self._raise_if_closed()
        loop = self._attach()
        if worker.failure is not None:
            raise EnvError(worker.failure)
        future: asyncio.Future[Any] = loop.create_future()
        worker.call(what, slot, argument, limit_s, future)
        if not self._unsent:
            loop.call_soon(self._flush_all)
        self._unsent.append(worker)
        if self._watch is None:
            self._watch_later(loop)
        return await future

    def _wait(self, call: Call) -> Any:
        """Blocks until a call is answered; handles all workers meanwhile."""
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
        if call.kind != "ok":
            raise EnvError(call.value)
        return call.value

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise EnvError("the environment pool was closed")

    # The event loop

    def _attach(self) -> asyncio.AbstractEventLoop:
        """Moves the workers to the running loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            for worker in self._workers:
                self._detach(worker)
            self._loop, self._watch = loop, None
            self._unsent.clear()
            for worker in self._workers:
                self._register(worker)
        return loop

    def _register(self, worker: WorkerProcess) -> None:
        if self._loop is not None and not self._loop.is_closed() and worker.failure is None:
            self._loop.add_reader(worker.socket, self._read, worker)
            self._write_later(worker)

    def _detach(self, worker: WorkerProcess) -> None:
        if self._loop is not None and not self._loop.is_closed() and worker.socket.fileno() >= 0:
            self._loop.remove_reader(worker.socket)
            self._loop.remove_writer(worker.socket)
        worker.writing = False

    def _write_later(self, worker: WorkerProcess) -> None:
        """Registers or removes the writer, as there is something left to send or not."""
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

    def _flush(self, worker: WorkerProcess) -> None:
        try:
            worker.flush()
        except Lost as err:
            self._replace(worker, str(err))
        else:
            if worker.failure is None:
                self._write_later(worker)

    def _read(self, worker: WorkerProcess) -> None:
        try:
            worker.receive()
        except Lost as err:
            self._replace(worker, str(err))

    def _watch_later(self, loop: asyncio.AbstractEventLoop) -> None:
        delay = min(0.5, self.step_timeout_s / 4, self.start_timeout_s / 4)
        self._watch = loop.call_later(delay, self._on_watch, loop)

    def _on_watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watch = None
        self._check_limits()
        if any(worker.calls for worker in self._workers) and not self._closed:
            self._watch_later(loop)

    def _check_limits(self) -> None:
        for worker in list(self._workers):
            try:
                worker.check_limit()
            except Lost as err:
                self._replace(worker, str(err))

    # Processes

    def _start(self, index: int) -> None:
        worker = WorkerProcess(index, self._setup, self.start_timeout_s, self._environ)
        self._processes[:] = [old for old in self._processes if old.popen.poll() is None] + [worker.process]
        if index < len(self._workers):
            self._workers[index] = worker
        else:
            self._workers.append(worker)
        self._register(worker)
        self._flush(worker)

    def _replace(self, worker: WorkerProcess, how: str) -> None:
        if worker.failure is not None:
            return
        index = worker.index
        doing = f" ({worker.front.what})" if worker.front else ""
        reason = f"environment worker {index} (process {worker.pid}) {how}{doing}"
        self._detach(worker)
        worker.fail(reason)
        if self._closed or not self._up:
            return  # the constructor reports it
        self._failed_starts[index] = 0 if worker.ready else self._failed_starts[index] + 1
        if self._failed_starts[index] < _STARTS:
            _LOG.warning("%s; it is replaced", reason)
            self.replaced += 1
            self._start(index)
            return
        _LOG.error("%s; it is not started again after %d failed starts", reason, _STARTS)
        self._given_up = reason
        self._free = deque(place for place in self._free if place[0] != index)
        if self._all_given_up():
            self._wake_waiting(EnvError(f"no environment worker is left: {reason}"))
