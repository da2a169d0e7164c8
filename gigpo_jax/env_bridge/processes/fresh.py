"""Runs a function in a fresh interpreter that cannot outlive this process.

A fork of this process could deadlock: jax runs threads in it. So a new interpreter starts, as a
guard. It forks before it imports anything else; its child leads a process group and calls the
function. When the child ends, or when this process closes the lifeline (a pipe) or dies, the guard
kills the group. This also ends C code that holds the interpreter lock, and processes that the child
started, unless they have a process group of their own.
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

_ROOT = str(pathlib.Path(__file__).resolve().parents[3])
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from gigpo_jax.env_bridge.processes.fresh import run_guard; run_guard(*sys.argv[2:])"
)
_GRACE_S = 2.0  # for the child to end by itself after the lifeline was closed
_END_S = 10.0  # for the guard to end after that
# Environments are programs of others: the keys of servers, which can replace weights, are not for
# them. A child does not inherit these variables.
_SECRETS = ("GIGPO_API_KEY", "VLLM_API_KEY")
_PR_SET_PDEATHSIG = 1


class FreshProcess:
    """A function that runs in a fresh interpreter.

    Attributes:
      popen: The guard. It ends with the status of the function's process, 128 + number after a
        signal.
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
        """Starts the function.

        Args:
          function: Function, "module:NAME".
          arguments: Arguments of the function, texts.
          pass_fds: File descriptors that the process inherits.
          environ: Environment variables in addition to this process's.
          stdin, stdout, stderr: As for `subprocess.Popen`.
        """
        inherited = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        # Only this process holds the write end: however it ends, the kernel closes the pipe, and
        # the guard sees its end. Nothing is ever written.
        read_end, self._lifeline = os.pipe()
        # -P: the working directory is not on the import path, so that no file in it takes the place
        # of a module of the standard library.
        command = [sys.executable, "-P", "-c", _BOOT, _ROOT, str(read_end), function, *arguments]
        try:
            self.popen = subprocess.Popen(
                command,
                pass_fds=(read_end, *pass_fds),
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
            # The guard has its own copy.
            os.close(read_end)

    def close(self) -> None:
        """Closes the lifeline; after 2 s the process's group is killed. May be called twice."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            # The number may belong to another file from now on: a second `close` must not close
            # that.
            self._lifeline = -1

    def end(self) -> None:
        """Closes the lifeline and waits until the process and its group have ended."""
        self.close()
        try:
            self.popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            # The guard hangs, or was stopped by SIGSTOP. The kernel kills the child with it
            # (`die_with_parent`).
            self.popen.kill()
            self.popen.wait()


def run_guard(lifeline: str, function: str, *arguments: str) -> None:
    """Forks a child to run the function, and kills the child's group at the end.

    It returns in the child only; the guard exits with the child's status.
    """
    # Safe here: nothing has started a thread yet.
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        # If the guard is killed, nobody watches the lifeline any more.
        die_with_parent(signal.SIGKILL)
        os.close(int(lifeline))
        module, _, name = function.partition(":")
        getattr(importlib.import_module(module), name)(*arguments)
        return

    # Both sides set the group, so that it exists whichever runs first.
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    # Batch systems send these to every process; the guard has to outlive the child.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Close the child's pipes and sockets here: their readers must see the end when the child ends.
    os.dup2(int(lifeline), 0)
    os.closerange(1, 1 << 16)

    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    # A signal between `waitpid` and `select` would be missed otherwise: the byte in the pipe stays,
    # and `select` returns at once.
    signal.set_wakeup_fd(wakeup_write)
    # A handler, even an empty one: without it the signal writes no byte to the wakeup pipe.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # First without a limit, until the child ends or the lifeline closes; then the child's grace.
    status = _wait_for_child(child, wakeup_read, None)
    if status is None:
        status = _wait_for_child(child, wakeup_read, time.monotonic() + _GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        # Also after the child ended by itself: processes that it started are in its group.
        os.killpg(child, signal.SIGKILL)
    if status is None:
        _, status = os.waitpid(child, 0)
    # Negative after a signal; the shell's form is 128 + number.
    code = os.waitstatus_to_exitcode(status)
    # Not sys.exit: its standard streams are closed, and there is nothing to clean up.
    os._exit(code if code >= 0 else 128 - code)


def _wait_for_child(child: int, wakeup: int, deadline: float | None) -> int | None:
    """Waits for the child until a deadline, or else until the lifeline is closed.

    Returns:
      The child's wait status; None if the deadline or the end of the lifeline came first.
    """
    # With a deadline the lifeline is closed already and would always be ready.
    descriptors = [wakeup] if deadline else [wakeup, 0]
    while True:
        # Asked at each turn: a child that has only stopped sends SIGCHLD too.
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        timeout = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        ready, _, _ = select.select(descriptors, [], [], timeout)
        if not ready or 0 in ready:
            return None
        os.read(wakeup, 4096)


def die_with_parent(number: int) -> None:
    """Asks the kernel for a signal when the parent is killed; it works on Linux only."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    # The kernel sends nothing for a parent that died before the call.
    if os.getppid() != parent:
        os._exit(1)
