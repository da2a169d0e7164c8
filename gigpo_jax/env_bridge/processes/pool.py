"""Environments in worker processes, as asyncio handles.

A worker is a fresh interpreter that hosts many environments. It handles calls in order, except
steps that wait for something outside the process (`TextEnv.step_async`). A worker that dies or
exceeds a limit is replaced: its episodes get an `EnvError`, the others continue. The pool has no
threads. It reads its sockets from the running event loop; several loops may use it one after the
other, from one thread.
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

from gigpo_jax.env_bridge.base import check_whole
from gigpo_jax.env_bridge.processes.frames import WorkerSetup
from gigpo_jax.env_bridge.processes.fresh import FreshProcess
from gigpo_jax.env_bridge.processes.process import (
    Call,
    WorkerLost,
    WorkerProcess,
    make_error,
    stop_workers,
)
from gigpo_jax.env_bridge.types import EnvError, Observation, StepResult, Task

_LOG = logging.getLogger(__name__)
# Without a bound a builder that fails would start interpreters for ever.
_MAX_FAILED_STARTS = 3  # in a row; then a worker is not started again


class PooledEnv:
    """One environment of the pool, in use by one episode."""

    def __init__(self, pool: "EnvPool", index: int, slot: int) -> None:
        self._pool = pool
        self._index = index
        self._slot = slot
        self._worker: WorkerProcess | None = None

    async def reset(self, task: Task) -> Observation:
        """Starts an episode.

        Raises:
          EnvError: The environment failed, or its worker died or exceeded its limit.
        """
        pool = self._pool
        # Taken at the reset: after a replacement another worker has this index, and it does not
        # know the episode. `step` then fails on the old one.
        self._worker = pool._workers[self._index]
        return await pool._call(self._worker, "reset", self._slot, task, pool.start_timeout_s)

    async def step(self, action: str) -> StepResult:
        """Acts in the environment.

        Raises EnvError as `reset`, or if the worker was replaced since then.
        """
        if self._worker is None:
            raise RuntimeError("step before reset")
        pool = self._pool
        return await pool._call(self._worker, "step", self._slot, action, pool.step_timeout_s)

    def release(self) -> None:
        """Returns the environment to the pool; may be called twice."""
        if self._slot >= 0:
            self._pool._free_slot(self._index, self._slot)
            # A second `release` must not give away a slot that the next episode holds.
            self._slot = -1
            self._worker = None


class EnvPool:
    """A fixed number of environments in worker processes.

    Attributes:
      size: Largest number of episodes at the same time.
      replaced: Number of workers that were replaced so far.
      start_timeout_s: Time limit for a worker to be ready, for `tasks` and for a reset, s.
      step_timeout_s: Time limit for a step, s.
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
        """Starts the workers and waits for their first environments.

        Args:
          build: Builder of an environment, "module:NAME" (`registry.spec(name).build`).
          options: Keyword arguments of the builder; plain values.
          workers: Number of processes, >= 1.
          envs_per_worker: Number of environments in each, >= 1.
          start_timeout_s, step_timeout_s: See `EnvPool`; the time of a call starts when it is the
            worker's oldest one.
          environ: Environment variables of the workers in addition to this process's.

        Raises:
          InputError: A reference or option is wrong, or data is missing.
          EnvError: A worker did not start for another reason.
        """
        check_whole("workers", workers, 1)
        check_whole("envs_per_worker", envs_per_worker, 1)
        self.size = workers * envs_per_worker
        self.replaced = 0
        self.start_timeout_s = start_timeout_s
        self.step_timeout_s = step_timeout_s
        self._environ = dict(environ or {})
        self._setup = WorkerSetup(build, dict(options or {}), tuple(sys.path))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsent: list[WorkerProcess] = []
        self._limit_timer: asyncio.TimerHandle | None = None
        self._tasks: dict[str, list[Task]] = {}
        # Until all workers are up, a failure raises in the constructor and starts no other worker.
        self._is_up = False
        self._closed = False
        self._failed_starts = [0] * workers
        self._last_failure = ""
        # Places alternate between the workers, so that few episodes use all processes.
        self._free_slots = deque(
            (index, slot) for slot in range(envs_per_worker) for index in range(workers)
        )
        self._waiters: deque[asyncio.Future[tuple[int, int]]] = deque()
        self._workers: list[WorkerProcess] = []
        self._processes: list[FreshProcess] = []
        # Ends the workers also where nobody calls `close`, such as at the interpreter's end. It
        # holds the lists and not the pool, which would otherwise never be collected.
        self._finish = weakref.finalize(self, stop_workers, self._workers, self._processes)
        try:
            for index in range(workers):
                # All processes start before any is waited for: their imports run at the same time.
                self._start_worker(index)
            for worker in self._workers:
                self._wait_for_call(worker.start_call)
            self._is_up = True
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
        """Returns the tasks of a split in order; the first call blocks for up to `start_timeout_s`.

        Raises:
          InputError: There is no such split, or data is missing.
          EnvError: The worker failed.
        """
        if split not in self._tasks:
            self._raise_if_closed()
            # Any worker would do: the tasks are the same in every process (`env_bridge.checker`).
            call = self._workers[0].queue_call("tasks", 0, split, self.start_timeout_s)
            self._tasks[split] = self._wait_for_call(call)
        return self._tasks[split]

    async def acquire(self) -> PooledEnv:
        """Waits for a free environment, first come, first served.

        Raises:
          EnvError: No worker is left.
        """
        self._attach_loop()
        if self._free_slots:
            return PooledEnv(self, *self._free_slots.popleft())
        if self._has_no_workers():
            raise EnvError(f"no environment worker is left: {self._last_failure}")
        waiter: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return PooledEnv(self, *await waiter)
        except asyncio.CancelledError:
            # The slot may have been handed over before the cancellation arrived: pass it on.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._free_slot(*waiter.result())
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
        """Ends all workers, so that pending calls raise `EnvError`; may be called twice."""
        self._closed = True
        for worker in self._workers:
            self._detach_worker(worker)
            worker.fail("the environment pool was closed")
        self._fail_waiters(EnvError("the environment pool was closed"))
        if self._limit_timer is not None:
            self._limit_timer.cancel()
        self._finish()

    # Slots

    def _free_slot(self, index: int, slot: int) -> None:
        """Hands a slot to the next waiter or frees it."""
        # The slot goes with its worker, which is not started again.
        if self._failed_starts[index] >= _MAX_FAILED_STARTS:
            return
        while self._waiters:
            waiter = self._waiters.popleft()
            # A waiter of an earlier loop was abandoned with it: nobody would give the slot back.
            if not waiter.done() and waiter.get_loop() is self._loop:
                waiter.set_result((index, slot))
                return
        self._free_slots.append((index, slot))

    def _fail_waiters(self, error: EnvError) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_exception(error)

    def _has_no_workers(self) -> bool:
        return all(count >= _MAX_FAILED_STARTS for count in self._failed_starts)

    # Calls

    async def _call(
        self, worker: WorkerProcess, operation: str, slot: int, argument: Any, limit_s: float
    ) -> Any:
        """Makes one call and waits for its answer."""
        self._raise_if_closed()
        loop = self._attach_loop()
        if worker.failure is not None:
            raise EnvError(worker.failure)
        future: asyncio.Future[Any] = loop.create_future()
        worker.queue_call(operation, slot, argument, limit_s, future)
        # All calls of one tick of the loop are sent together: one system call for each worker.
        if not self._unsent:
            loop.call_soon(self._flush_unsent)
        self._unsent.append(worker)
        # A timer only while calls are pending: an idle pool does not wake the loop.
        if self._limit_timer is None:
            self._schedule_limit_check(loop)
        return await future

    def _wait_for_call(self, call: Call) -> Any:
        """Blocks until a call is answered; handles all workers meanwhile."""
        while call.kind is None:
            for worker in list(self._workers):
                self._flush(worker)
            # A new selector each time: a worker may have been replaced, and its socket with it.
            with selectors.DefaultSelector() as selector:
                for worker in self._workers:
                    if worker.failure is not None:
                        continue
                    events = selectors.EVENT_READ
                    if worker.outbox:
                        events |= selectors.EVENT_WRITE
                    selector.register(worker.socket, events, worker)
                # A short wait: nothing else wakes this loop when a worker is over its limit.
                ready = selector.select(0.1)
            for key, _ in ready:
                self._receive(key.data)
            self._check_limits()
        if call.kind == "input":
            raise make_error("input", call.value)
        if call.kind != "ok":
            raise EnvError(call.value)
        return call.value

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise EnvError("the environment pool was closed")

    # The event loop

    def _attach_loop(self) -> asyncio.AbstractEventLoop:
        """Moves the workers to the running loop."""
        loop = asyncio.get_running_loop()
        # Each rollout and evaluation runs a loop of its own, and only the running one can watch the
        # sockets.
        if loop is not self._loop:
            for worker in self._workers:
                self._detach_worker(worker)
            self._loop = loop
            self._limit_timer = None
            self._unsent.clear()
            for worker in self._workers:
                self._attach_worker(worker)
        return loop

    def _attach_worker(self, worker: WorkerProcess) -> None:
        if self._loop is not None and not self._loop.is_closed() and worker.failure is None:
            self._loop.add_reader(worker.socket, self._receive, worker)
            self._update_writer(worker)

    def _detach_worker(self, worker: WorkerProcess) -> None:
        if self._loop is not None and not self._loop.is_closed() and worker.socket.fileno() >= 0:
            self._loop.remove_reader(worker.socket)
            self._loop.remove_writer(worker.socket)
        worker.has_writer = False

    def _update_writer(self, worker: WorkerProcess) -> None:
        """Registers a writer only while there are unsent bytes."""
        needs_writer = bool(worker.outbox)
        if needs_writer == worker.has_writer or self._loop is None or self._loop.is_closed():
            return
        worker.has_writer = needs_writer
        if needs_writer:
            self._loop.add_writer(worker.socket, self._flush, worker)
        else:
            self._loop.remove_writer(worker.socket)

    def _flush_unsent(self) -> None:
        # Each worker once, in the order of the calls.
        workers = list(dict.fromkeys(self._unsent))
        self._unsent = []
        for worker in workers:
            self._flush(worker)

    def _flush(self, worker: WorkerProcess) -> None:
        try:
            worker.send_outbox()
        except WorkerLost as err:
            self._replace_worker(worker, str(err))
        else:
            if worker.failure is None:
                self._update_writer(worker)

    def _receive(self, worker: WorkerProcess) -> None:
        try:
            worker.receive_answers()
        except WorkerLost as err:
            self._replace_worker(worker, str(err))

    def _schedule_limit_check(self, loop: asyncio.AbstractEventLoop) -> None:
        # A call may exceed its limit by this delay; a quarter keeps that small for short limits
        # too.
        delay = min(0.5, self.step_timeout_s / 4, self.start_timeout_s / 4)
        self._limit_timer = loop.call_later(delay, self._on_limit_timer, loop)

    def _on_limit_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._limit_timer = None
        self._check_limits()
        if any(worker.calls for worker in self._workers) and not self._closed:
            self._schedule_limit_check(loop)

    def _check_limits(self) -> None:
        for worker in list(self._workers):
            try:
                worker.check_limit()
            except WorkerLost as err:
                self._replace_worker(worker, str(err))

    # Processes

    def _start_worker(self, index: int) -> None:
        worker = WorkerProcess(index, self._setup, self.start_timeout_s, self._environ)
        # The guard of a replaced worker may still run; it stays on the list until it has ended.
        # `poll` reaps those that have.
        running = [process for process in self._processes if process.popen.poll() is None]
        # In place: the finalizer holds this list.
        self._processes[:] = [*running, worker.process]
        if index < len(self._workers):
            self._workers[index] = worker
        else:
            self._workers.append(worker)
        self._attach_worker(worker)
        self._flush(worker)

    def _replace_worker(self, worker: WorkerProcess, cause: str) -> None:
        """Fails a worker's calls and starts another in its place."""
        if worker.failure is not None:
            return
        index = worker.index
        reason = f"environment worker {index} (process {worker.pid}) {cause}"
        if worker.oldest_call is not None:
            reason += f" ({worker.oldest_call.operation})"
        self._detach_worker(worker)
        worker.fail(reason)
        if self._closed or not self._is_up:
            return  # the constructor reports it
        # Only failures before the first environment count: a worker that was ready can be again.
        self._failed_starts[index] = 0 if worker.ready else self._failed_starts[index] + 1
        if self._failed_starts[index] < _MAX_FAILED_STARTS:
            _LOG.warning("%s; it is replaced", reason)
            self.replaced += 1
            self._start_worker(index)
            return
        _LOG.error("%s; it is not started again after %d failed starts", reason, _MAX_FAILED_STARTS)
        self._last_failure = reason
        self._free_slots = deque(place for place in self._free_slots if place[0] != index)
        if self._has_no_workers():
            self._fail_waiters(EnvError(f"no environment worker is left: {reason}"))
