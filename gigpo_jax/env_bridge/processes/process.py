"""The pool's side of one worker process: starts it, sends calls, receives answers.

A failure raises `WorkerLost`, and the pool replaces the worker.
"""

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gigpo_jax.core.errors import InputError, escape_controls
from gigpo_jax.env_bridge.processes.answers import decode_value, parse_answer
from gigpo_jax.env_bridge.processes.frames import WorkerSetup, pack_call, split_frames
from gigpo_jax.env_bridge.processes.fresh import FreshProcess
from gigpo_jax.env_bridge.types import EnvError, StepError

# One thread in each worker, unless the user sets another number: the processes run in parallel.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerLost(Exception):
    """A worker that cannot be used any more, with the reason as text."""


@dataclass(eq=False)
class Call:
    """A call to a worker.

    Attributes:
      number: Number of the call, unique in its worker; answers name it.
      operation: "start", "tasks", "reset" or "step".
      limit_s: Time limit, s.
      future: Future of the answer; None if `kind` is polled.
      start_s: Time when it became its worker's oldest call, s on the monotonic clock; None before.
      kind: "ok", or the kind of error (worker.py), after the answer.
      value: Answer, or the text of the error.
    """

    number: int
    operation: str
    limit_s: float
    future: "asyncio.Future[Any] | None" = None
    start_s: float | None = None
    kind: str | None = None
    value: Any = None

    def settle(self, kind: str, value: Any) -> None:
        """Stores the answer and resolves the future."""
        self.kind = kind
        self.value = value
        # The episode may have been cancelled, and its event loop closed, before the answer came.
        if self.future is None or self.future.done() or self.future.get_loop().is_closed():
            return
        if kind == "ok":
            self.future.set_result(value)
        elif kind == "step":
            self.future.set_exception(StepError(value))
        else:
            self.future.set_exception(EnvError(str(make_error(kind, value))))


def make_error(kind: str, value: Any) -> Exception:
    """Returns the exception that a failed answer describes, whose kind is not "ok"."""
    if kind == "input":
        return InputError(**value)
    return StepError(value) if kind == "step" else EnvError(value)


class WorkerProcess:
    """A worker: a fresh interpreter behind a socket.

    Attributes:
      index: Index of the worker in the pool.
      process: Guard and worker.
      pid: Process id of the worker, or of the guard until the worker is ready.
      ready: Whether the worker has built its first environment.
      failure: Reason why the worker is not used any more; None while it is used.
      socket: Socket to the worker.
      start_call: Call that the worker answers when it is ready.
      calls: Unanswered calls by number, in order.
      outbox: Bytes that are not sent yet.
      has_writer: Whether the event loop has a writer for the socket.
    """

    def __init__(
        self, index: int, setup: WorkerSetup, start_timeout_s: float, environ: Mapping[str, str]
    ) -> None:
        """Starts the process; the setup is queued for `send_outbox`."""
        self.index = index
        self.ready = False
        self.has_writer = False
        self.failure: str | None = None
        self.calls: dict[int, Call] = {}
        self.outbox = bytearray()
        self._inbox = bytearray()
        self._number = 0
        # A socket, not standard input and output: an environment may print.
        self.socket, worker_socket = socket.socketpair()
        self.socket.setblocking(False)
        threads = {name: os.environ.get(name, "1") for name in _THREADS}
        # Closed here once the child has it: otherwise the end of the worker would not close the
        # connection.
        with worker_socket:
            self.process = FreshProcess(
                "gigpo_jax.env_bridge.processes.worker:main",
                str(worker_socket.fileno()),
                pass_fds=(worker_socket.fileno(),),
                environ={**threads, **environ},
            )
        self.pid = self.process.popen.pid
        self.start_call = Call(0, "start", start_timeout_s)
        self._enqueue(self.start_call, pack_call(setup))

    def queue_call(
        self,
        operation: str,
        slot: int,
        argument: Any,
        limit_s: float,
        future: "asyncio.Future[Any] | None" = None,
    ) -> Call:
        """Queues a call for `send_outbox`."""
        self._number += 1
        call = Call(self._number, operation, limit_s, future)
        self._enqueue(call, pack_call((call.number, operation, slot, argument)))
        return call

    def _enqueue(self, call: Call, frame: bytes) -> None:
        self.calls[call.number] = call
        self.outbox += frame

    @property
    def oldest_call(self) -> Call | None:
        """The oldest unanswered call."""
        return next(iter(self.calls.values()), None)

    def _time_oldest_call(self) -> None:
        call = self.oldest_call
        if call is not None and call.start_s is None:
            call.start_s = time.monotonic()

    def send_outbox(self) -> None:
        """Sends as much as possible without waiting; raises WorkerLost."""
        if self.failure is not None or not self.outbox:
            return
        # The limit begins here, not when the call was queued: the time of a busy event loop in
        # between is not the worker's.
        self._time_oldest_call()
        try:
            # May send a part; the rest waits until the socket is writable again.
            size = self.socket.send(self.outbox)
        except BlockingIOError:
            return
        except OSError as err:
            raise WorkerLost(self._describe_end()) from err
        del self.outbox[:size]

    def receive_answers(self) -> None:
        """Settles the calls whose answers have arrived, without waiting.

        Raises:
          WorkerLost: The process has ended, could not start, or sent something unreadable.
        """
        if self.failure is not None:
            return
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            # A reset connection and a closed one mean the same: the worker is gone.
            data = b""
        if not data:
            raise WorkerLost(self._describe_end())
        self._inbox += data
        try:
            bodies = split_frames(self._inbox)
        except ValueError as err:
            raise WorkerLost(f"sent an answer that cannot be read ({err})") from err
        for body in bodies:
            self._settle_call(body)

    def _settle_call(self, body: bytes) -> None:
        try:
            answer = parse_answer(body)
            # A number that no call has raises KeyError, which is handled like any other unreadable
            # answer.
            call = self.calls[answer.number]
            value = decode_value(answer, call.operation)
        except Exception as err:  # an environment can write anything to its socket
            text = escape_controls(" ".join(f"{type(err).__name__}: {err}".split()))
            raise WorkerLost(f"sent an answer that cannot be read ({text:.200})") from err
        del self.calls[call.number]
        self._time_oldest_call()
        call.settle(answer.kind, value)
        if call is self.start_call:
            if answer.kind != "ok":
                raise WorkerLost(f"could not start: {make_error(answer.kind, value)}")
            self.ready = True
            self.pid = value

    def check_limit(self) -> None:
        """Raises WorkerLost if the oldest call is over its limit, or as `receive_answers` does."""
        # Read first: if this process was busy, the answers may have arrived in time.
        while self.failure is None and self.calls:
            count = len(self.calls)
            self.receive_answers()
            # Nothing more has arrived. Each turn settles a call at least, so this ends.
            if len(self.calls) == count:
                break
        call = self.oldest_call
        if call is None or call.start_s is None:
            return
        if time.monotonic() - call.start_s > call.limit_s:
            raise WorkerLost(f"gave no answer within {call.limit_s:g} s")

    def _describe_end(self) -> str:
        # The kernel closes the socket of a dying process before its status can be read.
        try:
            return f"died with status {self.process.popen.wait(timeout=1.0)}"
        except subprocess.TimeoutExpired:
            return "closed its socket"

    def fail(self, reason: str) -> None:
        """Fails the calls of the worker and ends it, after a moment to close its environments."""
        if self.failure is not None:
            return
        self.failure = reason
        self.socket.close()
        # Does not wait: the guard kills the process after its grace. The pool reaps it later.
        self.process.close()
        oldest_call = self.oldest_call
        calls = list(self.calls.values())
        self.calls = {}
        for call in calls:
            # The oldest call may be the cause, so it fails as a step does.
            is_cause = call is oldest_call and call.start_s is not None
            call.settle("step" if is_cause else "error", reason)


def stop_workers(workers: Iterable[WorkerProcess], processes: Iterable[FreshProcess]) -> None:
    """Ends all workers together and waits for their processes."""
    # Three loops: all workers end at the same time, so their graces do not add up.
    for worker in workers:
        worker.socket.close()
    for process in processes:
        process.close()
    for process in processes:
        process.end()
