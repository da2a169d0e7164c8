"""The launcher: a small process that starts a sandbox for each command.

A worker starts one with a control socket, and sends it the socket of each command. Three processes
belong to a command: a starter in the launcher's process namespace, the first process of the
sandbox, which measures and kills, and bash. The first two are trusted; the command runs in the
third and its children. When the first process of the sandbox ends, the kernel kills all others.
"""

import contextlib
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass

from gigpo_jax.envs.shell.sandbox import kernel
from gigpo_jax.envs.shell.sandbox.folder import (
    ROOT,
    CommandLimits,
    CommandOutcome,
    CommandRequest,
    make_stopped_outcome,
    pack_outcome,
    read_folder,
    unpack_command,
    write_folder,
)

# What the sandbox shows of the system. Not /usr/local, where this project may be installed.
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SYSTEM_BELOW_USR = (*SYSTEM, "libexec")
SETTINGS = ("etc/alternatives", "etc/ld.so.cache")
DEVICES = ("null", "zero")
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": ROOT,
    "TMPDIR": ROOT,
    "LC_ALL": "C.UTF-8",
    "TERM": "dumb",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
}
NOBODY = 65534  # user of the sandbox if the worker runs as root
_USER = 1000  # of the command, inside
_CWD_FILE = 9  # file descriptor that takes the working directory
_CWD_BYTES = 1024
# The trap runs at the end of the command. Its text is no part of the command, so that messages
# have the command's line numbers.
_WRAPPER = f"trap 'pwd -P >&{_CWD_FILE}' EXIT; command=$1; shift; eval \"$command\""
_POLL_S = 0.01
_GRACE_S = 5.0  # for reading the folder, after the command's deadline


def main(descriptor: str) -> None:
    """Starts sandboxes until the worker closes the control socket."""
    control = socket.socket(fileno=int(descriptor))
    # Ctrl-C and the end of a batch job reach the worker, which closes the socket.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # The starters are not waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    error = ""
    try:
        _leave_network()
    except OSError as err:
        error = str(err)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            if os.fork() == 0:
                control.close()
                _run_child(connection, error)


def _leave_network() -> None:
    """Gives up root, and enters an empty network that all commands of the launcher share.

    A network for each command would take longer than the command.
    """
    if os.geteuid() == 0 and _find_outside_user() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        # The change of the user cleared it, and then the map of users could not be written.
        kernel.set_dumpable(True)
    _enter_user_namespace(kernel.NEW_NET | kernel.NEW_HOST, 0)
    socket.sethostname("sandbox")


def _find_outside_user() -> int:
    """Returns the user outside that is root in here."""
    with open("/proc/self/uid_map") as file:
        return int(file.readline().split()[1])


def _enter_user_namespace(flags: int, user: int) -> None:
    """Enters new namespaces, with all rights in them alone."""
    uid = os.getuid()
    gid = os.getgid()
    kernel.unshare(kernel.NEW_USER | flags, "namespaces of a user without rights")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {uid} 1"),
        ("gid_map", f"{user} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _run_child(connection: socket.socket, error: str) -> None:
    """Handles one command in a fork, and ends it."""
    try:
        # Also before an error: a socket that closes with unread data loses the answer.
        chunks = []
        while chunk := connection.recv(1 << 18):
            chunks.append(chunk)
        if error:
            raise OSError(error)
        _start_sandbox(connection, unpack_command(b"".join(chunks)))
    except Exception as err:  # the worker raises it again
        _send(connection, b"!" + str(err).encode("utf-8", "replace"))
    finally:
        os._exit(0)


def _send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the worker is gone
        connection.sendall(data)


def _start_sandbox(connection: socket.socket, request: CommandRequest) -> None:
    """Starts the sandbox of a request, and limits its time."""
    kernel.end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    flags = kernel.NEW_MOUNTS | kernel.NEW_PIDS | kernel.NEW_IPC | kernel.NEW_GROUPS
    _enter_user_namespace(flags, _USER)
    first = os.fork()
    if first == 0:
        _run_first_process(connection, request)
    # The worker reads to the end of the first process.
    connection.close()
    deadline = time.monotonic() + request.limits.seconds + _GRACE_S
    while os.waitpid(first, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(first, signal.SIGKILL)
        time.sleep(_POLL_S)


def _run_first_process(connection: socket.socket, request: CommandRequest) -> None:
    """Runs the command as the first process of the namespace."""
    try:
        kernel.end_with_parent()
        kernel.set_dumpable(False)
        # Namespaces inside would allow mounts, and so memory without a limit.
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")
        processes = _build_root(request.limits)
        write_folder(ROOT, request.folder)
        _send(connection, b"=" + pack_outcome(_run_command(request, processes)))
    except Exception as err:  # the worker raises it again
        _send(connection, b"!" + str(err).encode("utf-8", "replace"))
    finally:
        os._exit(0)


def _build_root(limits: CommandLimits) -> int:
    """Builds and enters the file system of the sandbox.

    Returns a file descriptor of /proc, which the sandbox does not have.
    """
    os.umask(0)
    kernel.mount("none", "/", "", kernel.PRIVATE | kernel.RECURSIVE)
    quiet = kernel.NO_SUID | kernel.NO_DEV
    kernel.mount("proc", "/proc", "proc", quiet | kernel.NO_EXEC)
    processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    root = "/tmp"
    kernel.mount("tmpfs", root, "tmpfs", quiet, "size=64k,nr_inodes=128,mode=755")
    for path in (*SYSTEM, *(f"usr/{name}" for name in SYSTEM_BELOW_USR), *SETTINGS):
        _show_path(root, path)
    os.mkdir(f"{root}/dev")
    for name in DEVICES:
        _make_file(f"{root}/dev/{name}")
        kernel.mount(f"/dev/{name}", f"{root}/dev/{name}", "", kernel.BIND)
    os.mkdir(root + ROOT)
    # One entry more than the limit, which is the folder itself.
    size = f"size={limits.folder},nr_inodes={limits.entries + 1},mode=755"
    kernel.mount("tmpfs", root + ROOT, "tmpfs", quiet, size)
    kernel.change_root(root)
    os.utime("/", (0, 0))
    kernel.mount("", "/", "", kernel.REMOUNT | kernel.BIND | kernel.READ_ONLY | quiet)
    return processes


def _show_path(root: str, path: str) -> None:
    """Shows a path of the system, read-only."""
    source = f"/{path}"
    target = f"{root}/{path}"
    if not os.path.lexists(source):
        return
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    # /bin is a link to usr/bin on most systems.
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        _make_file(target)
    kernel.bind_read_only(source, target)


def _make_file(path: str) -> None:
    with open(path, "x"):
        pass


@dataclass
class _Reader:
    """Reader of what a pipe holds, up to a limit."""

    descriptor: int
    limit: int
    data: bytes = b""
    is_open: bool = True

    @property
    def has_room(self) -> bool:
        """Whether more can be read."""
        return self.is_open and len(self.data) <= self.limit

    def read(self) -> None:
        """Reads what is there, without waiting."""
        while self.has_room:
            try:
                chunk = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            self.is_open = bool(chunk)
            self.data += chunk


def _open_pipe(limit: int) -> tuple[_Reader, int]:
    """Opens a pipe; returns its reader and its sink."""
    source, sink = os.pipe()
    os.set_blocking(source, False)
    return _Reader(source, limit), sink


class _Usage:
    """What a command has used of its time, processors and memory.

    Attributes:
      cpu_seconds: CPU time of processes that have ended, s.
    """

    def __init__(self, limits: CommandLimits, processes: int) -> None:
        """Starts the clock; `processes` is a descriptor of the sandbox's /proc."""
        self.cpu_seconds = 0.0
        self._limits = limits
        self._processes = processes
        self._own_seconds: dict[tuple[str, bytes], float] = {}
        self._measurement = time.monotonic()
        self._deadline = self._measurement + limits.seconds

    def find_passed_limit(self, is_running: bool) -> str:
        """Returns "time" or "memory" if the command has used more than it may, otherwise ""."""
        now = time.monotonic()
        if is_running and now > self._deadline:
            return "time"
        # Not at every call: a command may write output without a pause.
        if now <= self._measurement + _POLL_S:
            return ""
        self._measurement = now
        memory, running_seconds = _measure_usage(self._processes, self._own_seconds)
        if memory > self._limits.memory:
            return "memory"
        # The first sum lacks ended children that their parent ignores.
        seconds = max(self.cpu_seconds + running_seconds, sum(self._own_seconds.values()))
        return "time" if seconds > self._limits.cpu_seconds else ""


def _run_command(request: CommandRequest, processes: int) -> CommandOutcome:
    """Runs bash until its end or a limit; kills all."""
    limits = request.limits
    output, output_sink = _open_pipe(limits.output)
    cwd, cwd_sink = _open_pipe(_CWD_BYTES)
    usage = _Usage(limits, processes)
    bash = os.fork()
    if bash == 0:
        _become_command(request, output_sink, cwd_sink)
    os.close(output_sink)
    os.close(cwd_sink)

    stop = ""
    status = None
    while status is None and not stop:
        pipes = [reader.descriptor for reader in (output, cwd) if reader.has_room]
        # Without pipes the command is ending, or it closed them and waits.
        select.select(pipes, [], [], _POLL_S if pipes else _POLL_S / 10)
        output.read()
        cwd.read()
        # A process whose parent has ended is a child of this one.
        for process, process_status, seconds in _reap():
            usage.cpu_seconds += seconds
            if process == bash:
                status = process_status
        if len(output.data) > limits.output:
            stop = "output"
        else:
            stop = usage.find_passed_limit(is_running=status is None)
    usage.cpu_seconds += _kill_all()
    output.read()
    cwd.read()
    if len(output.data) > limits.output:
        stop = "output"
    if not stop and usage.cpu_seconds > limits.cpu_seconds:
        stop = "time"
    if stop or status is None:
        return make_stopped_outcome(request, stop or "sandbox")
    try:
        folder = read_folder(ROOT, limits)
    except OSError:  # folders deeper than the longest path
        folder = None
    if folder is None:
        return make_stopped_outcome(request, "folder")
    code = os.waitstatus_to_exitcode(status)
    path = cwd.data.decode("utf-8", "surrogateescape").removesuffix("\n")
    return CommandOutcome(
        status=code if code >= 0 else 128 - code,
        output=output.data.decode("latin-1"),
        folder=folder,
        cwd=path if _is_folder(path) else ROOT,
    )


def _is_folder(path: str) -> bool:
    return path.startswith("/") and len(path) < _CWD_BYTES and os.path.isdir(path)


def _reap() -> list[tuple[int, int, float]]:
    """Returns process, status and CPU time, s, of ended children."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            process, status, usage = os.wait4(-1, os.WNOHANG)
            if process == 0:
                break
            ended.append((process, status, usage.ru_utime + usage.ru_stime))
    return ended


def _kill_all() -> float:
    """Kills the sandbox's processes; returns their CPU time, s."""
    seconds = 0.0
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all but this process, which is the first
        try:
            usage = os.wait4(-1, 0)[2]
        except ChildProcessError:
            return seconds
        seconds += usage.ru_utime + usage.ru_stime


def _measure_usage(
    processes: int, own_seconds: dict[tuple[str, bytes], float]
) -> tuple[int, float]:
    """Returns the command's resident memory, bytes, and its CPU time, s.

    The time includes processes that the command's processes waited for. `own_seconds` gets the time
    of each process alone; an ended one stays there.
    """
    pages = 0
    ticks = 0
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    for name in os.listdir(processes):
        if name.isdigit() and name != "1":
            with contextlib.suppress(OSError):  # the process has ended
                descriptor = os.open(f"{name}/stat", os.O_RDONLY, dir_fd=processes)
                # After the name, which may have any characters: proc(5), from the field 3 on.
                fields = os.read(descriptor, 4096).rpartition(b")")[2].split()
                os.close(descriptor)
                # Its number and the time of its start: numbers are used again.
                own_seconds[name, fields[19]] = sum(map(int, fields[11:13])) / ticks_per_second
                ticks += sum(map(int, fields[11:15]))
                pages += int(fields[21])
    return pages * os.sysconf("SC_PAGESIZE"), ticks / ticks_per_second


def _become_command(request: CommandRequest, output: int, cwd: int) -> None:
    """Turns this fork into bash."""
    try:
        os.setsid()
        os.umask(0o022)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        try:
            os.chdir(request.cwd)
        except OSError:  # an earlier command removed it
            os.chdir(ROOT)
        # To high numbers first: one of the descriptors may be the target of another.
        null = os.open("/dev/null", os.O_RDONLY)
        sources = [fcntl.fcntl(number, fcntl.F_DUPFD, 100) for number in (null, output, cwd)]
        for source, target in zip((sources[0], sources[1], *sources[1:]), (0, 1, 2, _CWD_FILE)):
            os.dup2(source, target)
        os.closerange(3, _CWD_FILE)
        os.closerange(_CWD_FILE + 1, 1 << 12)
        _limit_resources(request.limits)
        kernel.refuse_system_calls()
        arguments = ["bash", "--noprofile", "--norc", "-c", _WRAPPER, "bash", request.command]
        os.execve("/bin/bash", arguments, ENVIRONMENT)
    except Exception as err:
        os.write(2, f"sandbox: {err}\n".encode())
    finally:
        os._exit(127)


def _limit_resources(limits: CommandLimits) -> None:
    for name, value in (
        # The first process stops them all before; the kernel's account is rough.
        (resource.RLIMIT_CPU, 2 * limits.cpu_seconds),
        (resource.RLIMIT_AS, limits.memory),
        (resource.RLIMIT_FSIZE, limits.folder),
        # The first process is one of them.
        (resource.RLIMIT_NPROC, limits.processes + 1),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


if __name__ == "__main__":
    main(sys.argv[1])
