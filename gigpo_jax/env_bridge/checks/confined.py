"""A check of an environment in a process of its own: whatever a call does there, the one who asked gets an answer.

The process says what it is about to call and how long that may take, over a pipe; this side ends it when it takes
longer. So a call that sleeps, loops in C without letting go of the interpreter, or ends its process is a broken promise
like any other.
"""

import contextlib
import os
import pathlib
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gigpo_jax.env_bridge.worker import pack, unpack
from gigpo_jax.errors import InputError

_ROOT = str(pathlib.Path(__file__).resolve().parents[3])
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from gigpo_jax.env_bridge.checks.confined import serve; serve()"
_OWN_S = 120.0  # limit of what the check does itself: to start, and to compare between two calls
_GRACE_S = 1.0  # a call that ends so much later than it may is reported by its own process, with its time
_TEXT = 1000  # characters of an error that are told


class ConformanceError(AssertionError):
    """An environment broke a promise; the text says which, where and how."""


def require(condition: bool, message: str) -> None:
    """Raises a `ConformanceError` if a condition does not hold."""
    if not condition:
        raise ConformanceError(message)


@dataclass(frozen=True)
class Limits:
    """How long calls may take.

    Attributes:
      call_s: any call but those below, s.
      build_s: building an environment or an expert, and `tasks`, s.
    """

    call_s: float
    build_s: float


class Watch:
    """Makes the calls to an environment, each announced."""

    def __init__(self, tell: Callable[[str, Any], None], limits: Limits) -> None:
        self._tell, self._limits = tell, limits

    def call(self, what: str, function: Callable[[], Any]) -> Any:
        """The value of a call.

        Raises:
          ConformanceError: it raised, or took too long.
        """
        return self._call(what, function, self._limits.call_s, ())

    def build(self, what: str, function: Callable[[], Any]) -> Any:
        """As `call`, with more time; an `InputError` is the user's to read and passes."""
        return self._call(what, function, self._limits.build_s, (InputError,))

    def _call(self, what: str, function: Callable[[], Any], limit_s: float, passes: tuple[type[Exception], ...]) -> Any:
        self._tell("call", (what, limit_s))
        started = time.monotonic()
        try:
            value = function()
        except passes:
            raise
        except (Exception, SystemExit) as err:
            raise ConformanceError(f"{what} raised {describe(err)}") from err
        took = time.monotonic() - started
        self._tell("call", (f"the check of {what}", _OWN_S))
        require(took <= limit_s, f"{what} took {took:.1f} s, more than {limit_s:g} s")
        return value


def describe(err: BaseException) -> str:
    """An exception in one line."""
    return f"{type(err).__name__}: {' '.join(str(err).split())}"[:_TEXT]


def run(
    function: Callable[..., Any], *arguments: Any, limits: Limits, hash_seed: str | None = None, ends: bool = False
) -> Any:
    """Calls `function(watch, *arguments)` in a fresh interpreter.

    Args:
      function: of a module.
      *arguments: what can be pickled.
      limits: of the calls that it makes through its `Watch`.
      hash_seed: PYTHONHASHSEED there; None: as here.
      ends: whether the interpreter has to end by itself afterwards, within `limits.build_s`.

    Returns:
      What it returned.

    Raises:
      ConformanceError: what it raised, or what became of its process.
      InputError: what it raised.
    """
    try:
        body = pickle.dumps((function, arguments, limits))
    except (pickle.PicklingError, AttributeError, TypeError) as err:
        raise ConformanceError(
            f"make has to be picklable: a function of a module, or functools.partial ({describe(err)})"
        ) from err
    environ = {**os.environ, **({} if hash_seed is None else {"PYTHONHASHSEED": hash_seed})}
    with tempfile.TemporaryFile() as question:
        question.write(pickle.dumps((list(sys.path), body)))
        question.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, _ROOT],
            stdin=question,
            stdout=subprocess.PIPE,
            env=environ,
            process_group=0,  # with what the environment starts
        )
    try:
        kind, value = _verdict(process)
        if kind == "ok" and ends:
            try:
                process.wait(limits.build_s)
            except subprocess.TimeoutExpired as err:
                raise ConformanceError(
                    f"a fresh interpreter did not end within {limits.build_s:g} s after close"
                ) from err
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    if kind == "input":
        raise InputError(value)
    require(kind == "ok", str(value))
    return value


def _verdict(process: "subprocess.Popen[bytes]") -> tuple[str, Any]:
    """Reads announcements until the answer comes."""
    assert process.stdout is not None
    pipe, buffer = process.stdout.fileno(), bytearray()
    what, limit_s, deadline = "the start of a fresh interpreter", _OWN_S, time.monotonic() + _OWN_S
    while True:
        ended = process.poll() is not None
        ready, _, _ = select.select([pipe], [], [], 0 if ended else 0.1)
        data = os.read(pipe, 1 << 18) if ready else b""
        buffer += data
        for kind, value in unpack(buffer):
            if kind != "call":
                return kind, value
            what, limit_s = value
            deadline = time.monotonic() + limit_s + _GRACE_S
        if ended and not data:
            raise ConformanceError(f"{what} ended its process, with status {process.returncode}")
        if time.monotonic() > deadline:
            raise ConformanceError(f"{what} gave no answer within {limit_s:g} s")
        if ready and not data:  # closed, and not ended yet
            time.sleep(0.01)


def serve() -> None:
    """The other side of `run`: does what stdin asks for, answers on stdout."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an environment prints is no answer

    def tell(kind: str, value: Any) -> None:
        answers.write(pack((kind, value)))
        answers.flush()

    sys.path[:], body = pickle.loads(sys.stdin.buffer.read())
    try:
        function, arguments, limits = pickle.loads(body)
        tell("ok", function(Watch(tell, limits), *arguments))
    except InputError as err:
        tell("input", str(err))
    except ConformanceError as err:
        tell("broken", str(err))
    except (Exception, SystemExit) as err:  # the boundary: an environment may return what no check thinks of
        tell("broken", f"what it is or returned cannot be checked: {describe(err)}")
