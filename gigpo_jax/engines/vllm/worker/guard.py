"""Runs a server, and ends it when its starter is gone.

    python -m gigpo_jax.engines.vllm.worker.guard COMMAND...

Standard input is a pipe whose other end the starter holds open. When it closes, because the starter
closed it or was killed, the server and all its processes get SIGTERM and, after a grace period,
SIGKILL. So do the processes that a server leaves behind when it ends by itself. Linux and macOS;
needs only the standard library.

`env_bridge.processes.fresh` runs a function of this package and ends it with SIGKILL. A server is a
command of another interpreter, and needs SIGTERM and time to free shared memory.
"""

import contextlib
import functools
import os
import select
import signal
import subprocess
import sys
import time

from gigpo_jax.env_bridge.processes.fresh import die_with_parent

GRACE_S = 10.0
POLL_S = 0.2


def guard_command(command: list[str]) -> int:
    """Runs a command in its own session, until it ends or standard input closes.

    Returns:
      The exit status of the command.
    """
    # The server does not inherit the pipe. If the guard itself is killed, the kernel signals the
    # server (Linux).
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=functools.partial(die_with_parent, signal.SIGTERM),
    )
    # SystemExit runs the `finally` below; 143 is 128 + SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        while process.poll() is None:
            ready, _, _ = select.select([0], [], [], POLL_S)
            # An empty read is the end of the pipe; bytes that somebody sent have no meaning.
            if ready and not os.read(0, 4096):
                break
    finally:
        end_group(process)
    return process.returncode


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """Ends a session leader and its whole session."""
    _signal_group(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    # The leader may end before its workers, so the group is tested with signal 0. `poll` reaps the
    # leader, which would count as a member otherwise.
    while process.poll() is None or _signal_group(process.pid, 0):
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _signal_group(group: int, number: int) -> bool:
    """Signals a process group; returns whether it exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    sys.exit(guard_command(sys.argv[1:]))
