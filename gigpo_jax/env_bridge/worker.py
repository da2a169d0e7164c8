"""The worker process: hosts environments and answers the pool over a socket.

A frame is a 4-byte length and a pickle. The pool sends a `Setup` first (call 0, answered with the process id), then
calls `(number, operation, slot, argument)`. An answer is `(number, kind, value)` with kind "ok", "input" (an
`InputError`), "error" (an `EnvError`) or "step" (anything else that was raised, a `StepError`).
"""

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.boundary import checked_observation, checked_result, checked_tasks
from gigpo_jax.env_bridge.build import build
from gigpo_jax.env_bridge.types import EnvError, StepError
from gigpo_jax.errors import InputError, printable

_LENGTH = struct.Struct("!I")
_TEXT = 2000  # most characters of an error


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know: "module:NAME" of the builder, its keyword arguments, the parent's import path."""

    build: str
    options: Mapping[str, Any]
    sys_path: tuple[str, ...]


def pack(message: object) -> bytes:
    """A message as a frame."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def unpack(buffer: bytearray) -> list[Any]:
    """Removes the complete frames from the front of a buffer and decodes them."""
    messages, start = [], 0
    while len(buffer) - start >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer, start)
        end = start + _LENGTH.size + length
        if len(buffer) < end:
            break
        messages.append(pickle.loads(memoryview(buffer)[start + _LENGTH.size : end]))
        start = end
    del buffer[:start]
    return messages


class _Host:
    """The environments of this process, one per slot, built at first use."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._environments: dict[int, TextEnv] = {}
        self.environment(0)

    def environment(self, slot: int) -> TextEnv:
        if slot not in self._environments:
            self._environments[slot] = build(self._setup.build, self._setup.options)
        if "jax" in sys.modules:
            raise InputError(f"{self._setup.build} imports jax; environment workers must not")
        return self._environments[slot]

    def waits(self, operation: str, slot: int) -> bool:
        """Whether a call waits for something outside this process."""
        return operation == "step" and hasattr(self._environments.get(slot), "step_async")

    async def answer(self, operation: str, slot: int, argument: Any) -> Any:
        environment: Any = self.environment(slot)
        if self.waits(operation, slot):
            return checked_result(await environment.step_async(argument))
        if operation == "step":
            return checked_result(environment.step(argument))
        if operation == "reset":
            return checked_observation(environment.reset(argument))
        return checked_tasks(environment.tasks(argument))

    def discard(self, slot: int) -> None:
        """Closes an environment that failed: its state is unknown."""
        environment = self._environments.pop(slot, None)
        if environment is not None:
            try:
                environment.close()
            except (Exception, SystemExit) as err:
                print(f"environment close: {_failure(err)[1]}", file=sys.stderr)

    def close(self) -> None:
        for slot in list(self._environments):
            self.discard(slot)


def _failure(err: BaseException) -> tuple[str, str]:
    """Kind and text of an exception: one line, control characters escaped, for it ends up on a terminal."""
    named = isinstance(err, (InputError, EnvError))
    text = " ".join((str(err) if named else "".join(traceback.format_exception_only(err))).split())[:_TEXT]
    text = printable(text)
    if named:
        kinds = ((InputError, "input"), (StepError, "step"), (EnvError, "error"))
        return next(kind for known, kind in kinds if isinstance(err, known)), text
    where = traceback.extract_tb(err.__traceback__)[-1]
    return "step", f"{text} ({os.path.basename(where.filename)}:{where.lineno})"


class _Server:
    """Answers the pool's calls until the pool closes its socket.

    Calls are handled one by one, in order. Only a step of an environment with `step_async` lets the next calls start
    while it waits for something outside this process, such as a retriever; those of its own slot wait for it.
    """

    def __init__(self, pool: socket.socket) -> None:
        self._pool = pool
        self._host: _Host | None = None
        self._sending = asyncio.Lock()
        self._waiting: dict[int, asyncio.Task[None]] = {}  # by slot, the newest one

    async def run(self) -> None:
        """Returns when the pool has closed its socket, or the first environment cannot be built."""
        self._pool.setblocking(False)
        loop, buffer = asyncio.get_running_loop(), bytearray()
        try:
            while data := await loop.sock_recv(self._pool, 1 << 18):
                buffer += data
                for message in unpack(buffer):
                    if not await self._take(message):
                        return
        finally:
            for task in self._waiting.values():
                task.cancel()
            await asyncio.gather(*self._waiting.values(), return_exceptions=True)
            if self._host is not None:
                self._host.close()

    async def _take(self, message: Any) -> bool:
        """Handles a message; returns whether to continue."""
        if isinstance(message, Setup):
            sys.path[:] = message.sys_path
            try:
                self._host = _Host(message)
            except (Exception, SystemExit) as err:  # the boundary: a builder may raise anything
                await self._send(0, *_failure(err))
                return False
            await self._send(0, "ok", os.getpid())
            return True
        call, operation, slot, argument = message
        assert self._host is not None, "the first message is the setup"
        before = self._waiting.get(slot)  # of an episode that was cancelled
        answer = self._answer(call, operation, slot, argument)
        if before is None and not self._host.waits(operation, slot):
            await answer
        else:
            self._waiting[slot] = asyncio.create_task(self._answer_later(answer, slot, before))
        return True

    async def _answer(self, call: int, operation: str, slot: int, argument: Any) -> None:
        assert self._host is not None
        try:
            value = await self._host.answer(operation, slot, argument)
        except (Exception, SystemExit) as err:  # as above
            await self._fail(call, slot, err)
        else:
            await self._send(call, "ok", value)

    async def _answer_later(
        self, answer: Coroutine[Any, Any, None], slot: int, before: "asyncio.Task[None] | None"
    ) -> None:
        try:
            with contextlib.closing(answer), contextlib.suppress(ConnectionError):  # `run` sees the closed socket
                if before is not None:
                    await asyncio.gather(before, return_exceptions=True)  # cancelled with this one
                await answer
        finally:
            if self._waiting[slot] is asyncio.current_task():
                del self._waiting[slot]

    async def _fail(self, call: int, slot: int, err: BaseException) -> None:
        assert self._host is not None
        if not isinstance(err, InputError):
            self._host.discard(slot)
        await self._send(call, *_failure(err))

    async def _send(self, call: int, kind: str, value: Any) -> None:
        try:
            frame = pack((call, kind, value))
        except Exception as err:  # the value cannot be pickled
            frame = pack((call, *_failure(err)))
        async with self._sending:
            await asyncio.get_running_loop().sock_sendall(self._pool, frame)


def main(descriptor: str) -> None:
    """Runs the worker on an inherited socket."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent handles Ctrl-C and the end of a batch job
        signal.signal(number, lambda *_: None)  # a handler: processes started here would inherit SIG_IGN
    try:
        asyncio.run(_Server(socket.socket(fileno=int(descriptor))).run())
    except ConnectionError:
        return  # the pool has closed its socket
