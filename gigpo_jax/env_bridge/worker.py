"""The worker process: hosts environments and answers the pool over a socket. Started by pool.py, never by hand.

Frames are a 4-byte length and a pickle. The first one from the pool is the `Setup`; after that `(call, operation, slot,
argument)`, answered in the same order by `(call, kind, value)` with kind "ok", "input" (an `InputError`) or "error".
"""

import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gigpo_jax.env_bridge import registry
from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.errors import InputError

_LENGTH = struct.Struct("!I")
_TEXT = 2000  # characters of an error that are carried over
_GRACE_S = 2.0  # for closing environments after the pool has gone
_PARENT_S = 5.0  # how often a worker looks whether its parent is still there


@dataclass(frozen=True)
class Setup:
    """What a worker has to know.

    Attributes:
      name: the environment, as in the registry.
      options: what its builder takes.
      sys_path: the parent's import path.
    """

    name: str
    options: Mapping[str, Any]
    sys_path: tuple[str, ...]


def pack(message: object) -> bytes:
    """A message as a frame."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def unpack(buffer: bytearray) -> list[Any]:
    """Takes the complete frames off the front of a buffer."""
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
    """The environments of this process, one a slot, built when first used."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._environments: dict[int, TextEnv] = {}
        self.environment(0)
        if "jax" in sys.modules:
            raise InputError(f'env.name="{setup.name}": its module imports jax; environment workers must not')

    def environment(self, slot: int) -> TextEnv:
        if slot not in self._environments:
            self._environments[slot] = registry.make(self._setup.name, **self._setup.options)
        return self._environments[slot]

    def answer(self, operation: str, slot: int, argument: Any) -> Any:
        environment = self.environment(slot)
        if operation == "step":
            return environment.step(argument)
        if operation == "reset":
            return environment.reset(argument)
        return [task if isinstance(task, Task) else Task(**task) for task in environment.tasks(argument)]

    def discard(self, slot: int) -> None:
        """Drops an environment that failed; its state cannot be trusted."""
        environment = self._environments.pop(slot, None)
        if environment is not None:
            try:
                environment.close()
            except Exception:
                traceback.print_exc()

    def close(self) -> None:
        for slot in list(self._environments):
            self.discard(slot)


def _failure(err: Exception) -> tuple[str, str]:
    if isinstance(err, InputError):
        return "input", str(err)[:_TEXT]
    where = traceback.extract_tb(err.__traceback__)[-1]
    text = "".join(traceback.format_exception_only(err)).strip()[:_TEXT]
    return "error", f"{text} ({os.path.basename(where.filename)}:{where.lineno})"


def _serve(pool: socket.socket) -> None:
    """Answers calls one by one until the pool closes its end."""
    buffer, host = bytearray(), None
    try:
        while data := pool.recv(1 << 18):
            buffer += data
            for message in unpack(buffer):
                if isinstance(message, Setup):
                    sys.path[:] = message.sys_path
                    call, slot = 0, 0
                else:
                    call, operation, slot, argument = message
                try:
                    if host is None:
                        host, value = _Host(message), None
                    else:
                        value = host.answer(operation, slot, argument)
                    reply = pack((call, "ok", value))
                except Exception as err:  # the boundary: whatever an environment raises is an answer
                    reply = pack((call, *_failure(err)))
                    if host is None:
                        pool.sendall(reply)
                        return
                    if not isinstance(err, InputError):
                        host.discard(slot)
                pool.sendall(reply)
    finally:
        if host is not None:
            host.close()


def _leave_with_parent(pool: socket.socket, parent: int) -> None:
    """Ends the process when the pool's end of the socket closes or its parent is gone, even in the midst of a call."""
    poller = select.poll()
    poller.register(pool.fileno(), getattr(select, "POLLRDHUP", 0))
    while not poller.poll(_PARENT_S * 1000) and os.getppid() == parent:
        pass
    threading.Event().wait(_GRACE_S)
    os._exit(1)


def main(descriptor: int, parent: int) -> None:
    """Runs the worker on an inherited socket."""
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C and the end of a batch job are the parent's to handle;
        signal.signal(number, lambda *_: None)  # a handler, as being ignored would be inherited by what is started here
    pool = socket.socket(fileno=descriptor)
    threading.Thread(target=_leave_with_parent, args=(pool, parent), daemon=True).start()
    try:
        _serve(pool)
    except (ConnectionError, BrokenPipeError):
        return  # the pool has gone
