"""Runs a server and ends it when whoever started it is gone: python -m gigpo_jax.sampling.vllm.worker.guard COMMAND...

Standard input is a pipe whose other end the starter holds open. When it closes, be it on purpose or because the starter
was killed, the server and everything it started are ended: first politely, and after a while not. When the server ends
by itself, what it leaves behind is ended too. Linux and macOS; the standard library alone.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

GRACE_S = 10.0
POLL_S = 0.2
PR_SET_PDEATHSIG = 1


def run(command: list[str]) -> int:
    """Runs the command in a session of its own until it ends or standard input does; returns its exit status."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        while process.poll() is None:
            ready, _, _ = select.select([0], [], [], POLL_S)
            if ready and not os.read(0, 4096):
                break
    finally:
        end_group(process)
    return process.returncode


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process that leads a session, and all of the session."""
    _signal(process.pid, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until and (process.poll() is None or _signal(process.pid, 0)):
        time.sleep(POLL_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: int) -> bool:
    """Whether there was anybody to signal."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


def _die_with_parent() -> None:
    """Should the guard itself be killed, the server gets SIGTERM (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
