"""Runs a server and ends it when its starter is gone: python -m gigpo_jax.sampling.vllm.worker.guard COMMAND...

Standard input is a pipe whose other end the starter holds open. When it closes, because the starter closed it or was
killed, the server and all its processes get SIGTERM and, after a grace period, SIGKILL. So do the processes that a
server leaves behind when it ends by itself. Linux and macOS; standard library alone.

Not `env_bridge.fresh`, which runs a function of this package and ends it with SIGKILL alone: a server is a command of
another interpreter, and needs SIGTERM and time to free shared memory.
"""

import contextlib
import functools
import os
import select
import signal
import subprocess
import sys
import time

from gigpo_jax.env_bridge.fresh import die_with_parent

GRACE_S = 10.0
POLL_S = 0.2


def run(command: list[str]) -> int:
    """Runs a command in its own session until it ends or standard input closes; returns its exit status."""
    with_guard = functools.partial(die_with_parent, signal.SIGTERM)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=with_guard)
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
    """Ends a session leader and its whole session."""
    _signal(process.pid, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until and (process.poll() is None or _signal(process.pid, 0)):
        time.sleep(POLL_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: int) -> bool:
    """Signals a process group; returns whether it exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
