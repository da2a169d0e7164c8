"""The worker process: hosts environments and answers the pool over a socket.

The pool sends a `WorkerSetup` first (call 0, answered with the process id), then calls `(number,
operation, slot, argument)`. An answer (answers.py) has one of four kinds: "ok", "input" (the fields
of an `InputError`), "error" (an `EnvError`) or "step" (any other exception, a `StepError` in the
pool).
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import traceback
from typing import TYPE_CHECKING, Any

from gigpo_jax.core.errors import InputError, escape_controls
from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.boundary import validate_observation, validate_result
from gigpo_jax.env_bridge.processes.answers import pack_answer
from gigpo_jax.env_bridge.processes.build import build_object
from gigpo_jax.env_bridge.processes.frames import WorkerSetup, parse_call, split_frames
from gigpo_jax.env_bridge.types import EnvError, StepError

if TYPE_CHECKING:
    from gigpo_jax.env_bridge.processes.overlaps import Overlaps

_ERROR_CHARACTERS = 2000  # of the text of an error


class _Host:
    """The environments of this process, one per slot, each built at first use."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._environments: dict[int, TextEnv] = {}
        # At once, so that a wrong option or missing data is reported at the start and not in the
        # first episode.
        prepare = getattr(self.get_environment(0), "prepare", None)
        if prepare is not None:
            prepare()

    def get_environment(self, slot: int) -> TextEnv:
        """The environment of a slot."""
        if slot not in self._environments:
            self._environments[slot] = build_object(self._setup.build, self._setup.options)
        # A second process that uses jax would compete with the learner for the accelerator.
        # At every call, because an environment may import modules late.
        if "jax" in sys.modules:
            raise InputError(
                "imports jax, which environment workers must not", key=self._setup.build
            )
        return self._environments[slot]

    def is_async(self, operation: str, slot: int) -> bool:
        """Whether a call waits for something outside this process."""
        return operation == "step" and hasattr(self._environments.get(slot), "step_async")

    async def answer(self, operation: str, slot: int, argument: Any) -> Any:
        """Handles a call; the result is validated."""
        environment: Any = self.get_environment(slot)
        if self.is_async(operation, slot):
            return validate_result(await environment.step_async(argument))
        if operation == "step":
            return validate_result(environment.step(argument))
        if operation == "reset":
            return validate_observation(environment.reset(argument))
        # Tools list tasks here; a run lists them in its own process.
        from gigpo_jax.env_bridge.task_lists import validate_tasks

        return validate_tasks(environment.tasks(argument))

    def discard(self, slot: int) -> None:
        """Closes an environment that failed: its state is unknown."""
        environment = self._environments.pop(slot, None)
        if environment is None:
            return
        try:
            environment.close()
        # SystemExit too: a library that calls sys.exit must not end the worker.
        except (Exception, SystemExit) as err:
            print(f"environment close: {_describe_failure(err)[1]}", file=sys.stderr)

    def close(self) -> None:
        """Closes all environments."""
        for slot in list(self._environments):
            self.discard(slot)


def _describe_failure(err: BaseException) -> tuple[str, Any]:
    """Returns kind and text of an exception, or kind and fields of an InputError.

    Every text is one line that is safe to print on a terminal.
    """
    if isinstance(err, InputError):
        fields = {"reason": err.reason, "key": err.key, "value": err.value, "fix": err.fix}
        return "input", {name: _shorten(text) for name, text in fields.items()}
    if isinstance(err, EnvError):
        return "step" if isinstance(err, StepError) else "error", _shorten(str(err))
    text = _shorten("".join(traceback.format_exception_only(err)))
    # The innermost frame: where the environment's author has to look.
    frame = traceback.extract_tb(err.__traceback__)[-1]
    file_name = _shorten(os.path.basename(frame.filename))
    return "step", f"{text} ({file_name}:{frame.lineno})"


def _shorten(text: str) -> str:
    """A text on one line, cut, with escaped control characters."""
    return escape_controls(" ".join(text.split())[:_ERROR_CHARACTERS])


class _Server:
    """Answers the pool's calls until the pool closes its socket.

    Calls are handled one by one, in order. Only while a step of an environment with `step_async`
    waits for something outside this process, such as a retriever, the next calls start. Those of
    its own slot wait for it.
    """

    def __init__(self, pool: socket.socket) -> None:
        self._pool = pool
        self._host: _Host | None = None
        self._sending = asyncio.Lock()
        self._overlaps: Overlaps | None = None  # only of environments with `step_async`

    async def run(self) -> None:
        """Handles calls until the pool closes its socket, or no first environment can be built."""
        self._pool.setblocking(False)
        loop = asyncio.get_running_loop()
        buffer = bytearray()
        try:
            while data := await loop.sock_recv(self._pool, 1 << 18):
                buffer += data
                for body in split_frames(buffer):
                    if not await self._handle(parse_call(body)):
                        return
        finally:
            if self._overlaps is not None:
                await self._overlaps.cancel()
            if self._host is not None:
                self._host.close()

    async def _handle(self, message: Any) -> bool:
        """Handles a message; returns whether to continue."""
        if isinstance(message, WorkerSetup):
            return await self._handle_setup(message)
        number, operation, slot, argument = message
        assert self._host is not None, "the first message is the setup"
        is_async = self._host.is_async(operation, slot)
        if is_async and self._overlaps is None:
            from gigpo_jax.env_bridge.processes.overlaps import Overlaps

            self._overlaps = Overlaps()
        answer = self._answer(number, operation, slot, argument)
        if self._overlaps is not None and (is_async or self._overlaps.has_call(slot)):
            self._overlaps.start(answer, slot)
        else:
            # Awaited here, so that no other call starts: environments are not written for
            # concurrent calls.
            await answer
        return True

    async def _handle_setup(self, setup: WorkerSetup) -> bool:
        # Environments and modules of the user are found as in the run's process.
        sys.path[:] = setup.sys_path
        try:
            self._host = _Host(setup)
        except (Exception, SystemExit) as err:  # a builder may raise anything
            kind, text = _describe_failure(err)
            await self._send(0, kind, text)
            return False
        await self._send(0, "ok", os.getpid())
        return True

    async def _answer(self, number: int, operation: str, slot: int, argument: Any) -> None:
        assert self._host is not None
        try:
            value = await self._host.answer(operation, slot, argument)
        except (Exception, SystemExit) as err:  # an environment may raise anything
            # An InputError refuses the argument; the environment is as it was before.
            if not isinstance(err, InputError):
                self._host.discard(slot)
            kind, text = _describe_failure(err)
            await self._send(number, kind, text)
        else:
            await self._send(number, "ok", value)

    async def _send(self, number: int, kind: str, value: Any) -> None:
        frame = pack_answer(number, kind, value)
        # One answer after the other: `sock_sendall` of two would mix their bytes.
        async with self._sending:
            await asyncio.get_running_loop().sock_sendall(self._pool, frame)


def main(descriptor: str) -> None:
    """Runs the worker on an inherited socket."""
    # The parent handles Ctrl-C and the end of a batch job. An empty handler, because processes
    # that an environment starts would inherit SIG_IGN.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    with contextlib.suppress(ConnectionError):  # the pool has closed its socket
        asyncio.run(_Server(socket.socket(fileno=int(descriptor))).run())
