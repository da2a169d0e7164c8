"""Starts fresh interpreters: one function in a process of its own that cannot outlive this process.

A fork of this process could deadlock: jax runs threads in it. So a new interpreter starts, as a guard. It forks before
it imports anything else; its child leads a process group and calls the function. When the child ends, or when this
process closes the lifeline (a pipe) or dies, the guard kills the group. This also ends C code that holds the
interpreter lock, and processes that the child started, unless they have a process group of their own.
"""

import contextlib
import ctypes
import importlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

_ROOT = str(pathlib.Path(__file__).resolve().parents[2])
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from gigpo_jax.env_bridge.fresh import guard; guard(*sys.argv[2:])"
)
_GRACE_S = 2.0  # for the child to end by itself once the lifeline is closed
_END_S = 10.0  # for the guard to end after that
_SECRETS = ("VLLM_API_KEY",)  # what a child does not inherit
_PR_SET_PDEATHSIG = 1


class FreshProcess:
    """A function that runs in a fresh interpreter.

    Attributes:
      popen: the guard; it ends with the status of the function's process, 128 + number after a signal.
    """

    def __init__(
        self,
        function: str,
        *arguments: str,
        pass_fds: Sequence[int] = (),
        environ: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
        stderr: int | None = None,
    ) -> None:
        """Starts the function "module:NAME" with text arguments, and `environ` beside the variables of this process."""
        inherited = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        theirs, self._lifeline = os.pipe()
        try:
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, _ROOT, str(theirs), function, *arguments],
                pass_fds=(theirs, *pass_fds),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=inherited | dict(environ or {}),
                process_group=0,  # a terminal's Ctrl-C does not reach it
            )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(theirs)

    def close(self) -> None:
        """Closes the lifeline: the process has 2 s to end by itself, then its group is killed. May be called twice."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def end(self) -> None:
        """Closes the lifeline and waits until the process and its group are gone."""
        self.close()
        try:
            self.popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


def guard(lifeline: str, function: str, *arguments: str) -> None:
    """Forks, runs the function in the child, and kills the child's group at the end; the guard itself never returns."""
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        die_with_parent(signal.SIGKILL)
        os.close(int(lifeline))
        module, _, name = function.partition(":")
        getattr(importlib.import_module(module), name)(*arguments)
        return
    with contextlib.suppress(OSError):  # the child has done it already
        os.setpgid(child, child)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # batch systems send them to every process
        signal.signal(number, signal.SIG_IGN)
    os.dup2(int(lifeline), 0)
    os.closerange(1, 1 << 16)  # the child's pipes and sockets: who reads them has to see it end
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    status = _wait(child, woken, None)
    if status is None:
        status = _wait(child, woken, time.monotonic() + _GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        status = os.waitpid(child, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _wait(child: int, woken: int, deadline: float | None) -> int | None:
    """The child's wait status; None if the deadline comes first or, where there is none, the end of the lifeline."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        limit = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        ready, _, _ = select.select([woken] if deadline else [woken, 0], [], [], limit)
        if not ready or 0 in ready:
            return None
        os.read(woken, 4096)


def die_with_parent(number: int) -> None:
    """Has the kernel send this process a signal when its parent is killed (Linux)."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it died before
            os._exit(1)
