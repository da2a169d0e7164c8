"""Sends commands to the launcher, of which a process has one."""

import asyncio
import atexit
import functools
import socket
import subprocess
import sys
import threading
from pathlib import Path

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import EnvError
from gigpo_jax.envs.shell.sandbox.folder import (
    CommandOutcome,
    CommandRequest,
    FolderEntry,
    make_stopped_outcome,
    pack_command,
    unpack_outcome,
)

_PACKAGE = Path(__file__).parents[4]
_CHUNK = 1 << 18  # bytes
_MARGIN_S = 30.0  # for a busy machine, beyond the limit that the launcher keeps
FIX = (
    "use Linux 5.14 or newer with bash and user namespaces: sysctl -w "
    "kernel.unprivileged_userns_clone=1 or kernel.apparmor_restrict_unprivileged_userns=0 where "
    "they exist; in a container --security-opt seccomp=unconfined --security-opt "
    "apparmor=unconfined --security-opt systempaths=unconfined"
)


class _Launcher:
    """The launcher process and its control socket."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            # Without site and the user's variables: it needs this package and nothing else.
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-m", _MODULE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={"PYTHONPATH": str(_PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"},
            )
        atexit.register(self.close)

    def connect(self) -> socket.socket:
        """Opens the socket of a command."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            socket.send_fds(self._control, [b"c"], [theirs.fileno()])
        return ours

    def close(self) -> None:
        """Ends the process."""
        self._control.close()
        self._process.wait(timeout=10)


_MODULE = "gigpo_jax.envs.shell.sandbox.launcher"
_start_launcher = functools.lru_cache(maxsize=1)(_Launcher)


def run_in_sandbox(request: CommandRequest) -> CommandOutcome:
    """Runs a command on a folder, in a fresh sandbox.

    Raises EnvError if there is no sandbox.
    """
    try:
        with _start_launcher().connect() as connection:
            connection.settimeout(request.limits.seconds + _MARGIN_S)
            connection.sendall(pack_command(request))
            connection.shutdown(socket.SHUT_WR)
            chunks = []
            while chunk := connection.recv(_CHUNK):
                chunks.append(chunk)
    except OSError as err:
        raise _forget_launcher(err) from err
    return _read_result(request, b"".join(chunks))


async def run_in_sandbox_async(request: CommandRequest) -> CommandOutcome:
    """As `run_in_sandbox`; other commands can run meanwhile."""
    loop = asyncio.get_running_loop()

    async def exchange(connection: socket.socket) -> bytes:
        await loop.sock_sendall(connection, pack_command(request))
        connection.shutdown(socket.SHUT_WR)
        chunks = []
        while chunk := await loop.sock_recv(connection, _CHUNK):
            chunks.append(chunk)
        return b"".join(chunks)

    try:
        with _start_launcher().connect() as connection:
            connection.setblocking(False)
            limit_s = request.limits.seconds + _MARGIN_S
            answer = await asyncio.wait_for(exchange(connection), limit_s)
    except (TimeoutError, OSError) as err:
        raise _forget_launcher(err) from err
    return _read_result(request, answer)


def _forget_launcher(err: Exception) -> EnvError:
    """Returns the error; the next command starts another launcher."""
    _start_launcher.cache_clear()
    return EnvError(f"the sandbox gave no answer ({err})")


def _read_result(request: CommandRequest, answer: bytes) -> CommandOutcome:
    if answer.startswith(b"!"):
        raise EnvError(f"the sandbox failed ({answer[1:].decode()})")
    # No answer: the first process did not end in time, or was killed for want of memory.
    return unpack_outcome(answer[1:]) if answer else make_stopped_outcome(request, "sandbox")


@functools.cache
def check_sandbox() -> None:
    """Raises InputError unless commands can be isolated here."""
    # With a fork, which a limit of processes may refuse.
    probe = CommandRequest("echo $(cat file)", {"file": FolderEntry("file", data="ok")})
    try:
        outcome = run_in_sandbox(probe)
        reason = "" if outcome.output == "ok\n" else f"the sandbox failed ({outcome})"
    except EnvError as err:
        reason = str(err)
    if reason:
        raise InputError(reason, key="config.env.name", value="shell", fix=FIX)
