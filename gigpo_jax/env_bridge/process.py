"""The pool's side of one worker process: starts it, sends calls, receives answers. The pool handles failures."""

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gigpo_jax.env_bridge.fresh import FreshProcess
from gigpo_jax.env_bridge.types import EnvError, StepError
from gigpo_jax.env_bridge.worker import Setup, pack, unpack

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # parallelism is one process a worker


class Lost(Exception):
    """The worker cannot be used any more; the text says why."""


@dataclass(eq=False)
class Call:
    """A call to a worker.

    Attributes:
      number: unique in its worker; answers name it.
      what: "start", "tasks", "reset" or "step".
      limit_s: the longest it may take, s.
      future: gets the answer; None if `kind` is polled.
      started: when it became its worker's oldest call, s on the monotonic clock; None before.
      kind: "ok", or the kind of error (worker.py), once there is an answer.
      value: the answer, or the text of the error.
    """

    number: int
    what: str
    limit_s: float
    future: "asyncio.Future[Any] | None" = None
    started: float | None = None
    kind: str | None = None
    value: Any = None

    def settle(self, kind: str, value: Any) -> None:
        """Stores the answer and resolves the future."""
        self.kind, self.value = kind, value
        if self.future is None or self.future.done() or self.future.get_loop().is_closed():
            return
        if kind == "ok":
            self.future.set_result(value)
        else:
            self.future.set_exception(StepError(value) if kind == "step" else EnvError(value))


class WorkerProcess:
    """A worker: a fresh interpreter at the other end of a socket.

    Attributes:
      process: guard and worker.
      pid: the worker's process id; the guard's until it is ready.
      ready: whether it has built its first environment.
      failure: why it is not used any more; None while it is used.
      calls: unanswered calls by number, in order.
      outbox: bytes that are not sent yet.
      writing: whether the event loop has a writer for the socket.
    """

    def __init__(self, index: int, setup: Setup, start_timeout_s: float, environ: Mapping[str, str]) -> None:
        self.index, self.ready, self.writing = index, False, False
        self.failure: str | None = None
        self.calls: dict[int, Call] = {}
        self.outbox = bytearray()
        self._inbox = bytearray()
        self._number = 0
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        threads = {name: os.environ.get(name, "1") for name in _THREADS}
        with theirs:
            self.process = FreshProcess(
                "gigpo_jax.env_bridge.worker:main",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                environ={**threads, **environ},
            )
        self.pid = self.process.popen.pid
        self.start = Call(0, "start", start_timeout_s)
        self._enqueue(self.start, pack(setup))

    def call(
        self, what: str, slot: int, argument: Any, limit_s: float, future: "asyncio.Future[Any] | None" = None
    ) -> Call:
        """Queues a call for `flush`."""
        self._number += 1
        call = Call(self._number, what, limit_s, future)
        self._enqueue(call, pack((call.number, what, slot, argument)))
        return call

    def _enqueue(self, call: Call, frame: bytes) -> None:
        self.calls[call.number] = call
        self.outbox += frame

    @property
    def front(self) -> Call | None:
        return next(iter(self.calls.values()), None)

    def _time_front(self) -> None:
        if self.front is not None and self.front.started is None:
            self.front.started = time.monotonic()

    def flush(self) -> None:
        """Sends as much as possible without waiting; raises Lost if the process has ended."""
        if self.failure is not None or not self.outbox:
            return
        self._time_front()
        try:
            sent = self.socket.send(self.outbox)
        except BlockingIOError:
            return
        except OSError as err:
            raise Lost(self._ending()) from err
        del self.outbox[:sent]

    def receive(self) -> None:
        """Settles the calls whose answers are here, without waiting.

        Raises:
          Lost: the process has ended, could not start, or sent something unreadable.
        """
        if self.failure is not None:
            return
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise Lost(self._ending())
        self._inbox += data
        try:
            answers = unpack(self._inbox)
        except Exception as err:  # a pickle of things that only the worker can import
            raise Lost(f"sent an answer that cannot be read ({type(err).__name__}: {err})") from err
        for number, kind, value in answers:
            call = self.calls.pop(number)
            self._time_front()
            call.settle(kind, value)
            if call is self.start:
                if kind != "ok":
                    raise Lost(f"could not start: {value}")
                self.ready, self.pid = True, value

    def check_limit(self) -> None:
        """Reads the answers that are here; raises Lost if the oldest call is over its limit, or as `receive`."""
        while self.failure is None and self.calls:
            waiting = len(self.calls)
            self.receive()
            if len(self.calls) == waiting:
                break
        call = self.front
        if call is not None and call.started is not None and time.monotonic() - call.started > call.limit_s:
            raise Lost(f"gave no answer within {call.limit_s:g} s")

    def _ending(self) -> str:
        try:
            return f"died with status {self.process.popen.wait(timeout=1.0)}"
        except subprocess.TimeoutExpired:
            return "closed its socket"

    def fail(self, reason: str) -> None:
        """Fails the calls of the worker and ends it; it gets a moment to close its environments."""
        if self.failure is None:
            self.failure = reason
            self.socket.close()
            self.process.close()
            front, calls = self.front, self.calls
            self.calls = {}
            for call in calls.values():  # the one in front may be the cause
                call.settle("step" if call is front and call.started is not None else "error", reason)


def stop(workers: Iterable[WorkerProcess], processes: Iterable[FreshProcess]) -> None:
    """Ends all workers together and waits for their processes."""
    for worker in workers:
        worker.socket.close()
    for process in processes:
        process.close()
    for process in processes:
        process.end()
