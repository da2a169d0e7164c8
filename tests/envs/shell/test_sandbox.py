"""Hostile commands, run for real: what they reach, what they leave, how they end."""

import contextlib
import os
import socket
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gigpo_jax.envs.shell.sandbox import launcher
from gigpo_jax.envs.shell.sandbox.client import run_in_sandbox
from gigpo_jax.envs.shell.sandbox.folder import (
    ROOT,
    CommandLimits,
    CommandOutcome,
    CommandRequest,
    FolderEntry,
    read_folder,
    write_folder,
)
from tests.envs.shell.sandboxes import skip_without_sandbox
from tests.processes import patience, wait_until

FOLDER = {
    "a": FolderEntry("file", 0o644, "one\n"),
    "sub": FolderEntry("folder", 0o755),
    "sub/b": FolderEntry("file", 0o755, "echo two\n"),
}
DEFAULT = CommandLimits()
SHORT = CommandLimits(seconds=1.5)


@pytest.fixture(autouse=True)
def _sandbox() -> None:
    skip_without_sandbox()


def run(
    command: str, *, cwd: str = ROOT, limits: CommandLimits = DEFAULT, folder=FOLDER
) -> CommandOutcome:
    started = time.monotonic()
    outcome = run_in_sandbox(CommandRequest(command, folder, cwd, limits))
    # A command that waits for ever would take longer.
    assert time.monotonic() - started < patience(limits.seconds + 20)
    return outcome


def list_processes(argument: str) -> list[int]:
    """The processes of this machine that have an argument."""
    numbers = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if argument in path.read_bytes().decode(errors="replace").split("\0"):
                numbers.append(int(path.parent.name))
    return numbers


def assert_gone(argument: str) -> None:
    """Waits until the kernel has removed the killed processes."""
    assert wait_until(lambda: not list_processes(argument), 10)


def test_a_command_changes_the_folder_and_the_working_directory() -> None:
    outcome = run("cd sub && bash b > c; chmod 700 c; ln -s ../a link; exit 3")
    assert (outcome.status, outcome.output, outcome.cwd) == (3, "", "/task/sub")
    assert outcome.folder == {
        **FOLDER,
        "sub/c": FolderEntry("file", 0o700, "two\n"),
        "sub/link": FolderEntry("link", 0o777, "../a"),
    }
    following = run("cat link; pwd; ls", cwd=outcome.cwd, folder=outcome.folder)
    assert following.output == "one\n/task/sub\nb\nc\nlink\n"
    assert run("pwd", cwd="/task/gone").output == "/task\n"
    assert run("cd sub; rm -r /task/sub").cwd == ROOT


def test_replays_are_exact() -> None:
    command = "ls -laiR --time-style=full-iso; echo $$ $PPID; env; id; hostname; find . | cat"
    outputs = {
        run(command, folder={**FOLDER, "x": FolderEntry("file", 0o600)}).output for _ in range(3)
    }
    assert len(outputs) == 1
    assert "1970-01-01" in outputs.pop()


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        "/etc/passwd",
        "/root",
        "/home",
        "/proc/1/environ",
        "/proc/self/mem",
        "/sys",
        "/var",
        "/usr/local",
        "/tmp",
        "/dev/mem",
        "/dev/vda",
        "/dev/tty",
        str(Path(__file__).parents[3]),
    ],
)
def test_nothing_else_can_be_read(path: str) -> None:
    outcome = run(f"cat {path}; ls {path}; ln -s {path} out; cat out; cat out/*")
    assert outcome.output.count("No such file or directory") == 4
    # The link is a text: it leads nowhere when the folder is read, either.
    assert outcome.folder["out"] == FolderEntry("link", 0o777, path)


def test_nothing_else_can_be_written(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("as before")
    before = sorted(os.listdir("/usr/bin"))
    for path in ("/x", "/usr/bin/x", "/bin/x", "/usr/lib/x", "/dev/x", "/etc/x", "/x/y", target):
        assert run(f"echo 1 > {path}").status == 1, path
    quiet = "rm -rf /usr/bin /dev /etc 2> /dev/null;"
    assert run(f"{quiet} mv /usr/bin/ls /task; touch /usr/bin/ls").status == 1
    assert sorted(os.listdir("/usr/bin")) == before
    assert target.read_text() == "as before"


def test_a_folder_can_be_deleted_and_the_root_stays() -> None:
    outcome = run("rm -rf /task ./* . ..; ls -A; mount -t tmpfs none /task; umount /task")
    assert outcome.folder == {}
    assert outcome.cwd == ROOT
    assert "Read-only file system" in outcome.output


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_there_is_no_network(port: int) -> None:
    outcome = run(f"echo hello > /dev/tcp/127.0.0.1/{port}")
    assert outcome.status == 1
    assert "Operation not permitted" in outcome.output
    script = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
    assert "PermissionError" in run(f'python3 -c "{script}"').output or not has_python()


def has_python() -> bool:
    return run("python3 -c 'print(1)'").output == "1\n"


def test_more_rights_cannot_be_had() -> None:
    outcome = run(
        "id -u; for tool in unshare 'unshare -U' 'unshare -r' 'chroot .' 'mount -t proc none sub';"
        " do $tool true; echo $?; done; mknod device b 8 0; echo $?; chown 0 a; echo $?;"
        " chmod u+s sub/b"
    )
    lines = outcome.output.splitlines()
    assert lines[0] == "1000"
    assert not any(line == "0" for line in lines[1:])
    assert "device" not in outcome.folder
    # Set-user-id bits do not come back.
    assert outcome.folder["sub/b"].mode == 0o755
    if has_python():
        calls = {"ptrace": 101, "memfd": 319, "keyctl": 250, "unshare": 272, "shmget": 29}
        if os.uname().machine == "x86_64":
            for name, number in calls.items():
                script = (
                    "import ctypes; libc = ctypes.CDLL(None, use_errno=True); "
                    f"print(libc.syscall({number}, 0, 0, 0, 0), ctypes.get_errno())"
                )
                assert run(f'python3 -c "{script}"').output == "-1 1\n", name


def test_a_fork_bomb_is_stopped() -> None:
    outcome = run(":(){ :|:& };:; sleep 947", limits=SHORT)
    assert outcome.stop == "time"
    assert outcome.folder == FOLDER
    outcome = run("for i in $(seq 100); do sleep 947 & done; echo; jobs -p | wc -l", limits=SHORT)
    assert outcome.stop == "time" or int(outcome.output.split()[-1]) <= DEFAULT.processes
    assert_gone("947")


def test_the_disk_cannot_be_filled() -> None:
    outcome = run("cat /dev/zero > full; ls -s --block-size=1 full")
    assert "No space left on device" in outcome.output or "File size limit" in outcome.output
    assert len(outcome.folder["full"].data) <= DEFAULT.folder
    # What fits once fits again: the folder is written anew for the next command.
    following = run("wc -c < full", folder=outcome.folder)
    assert int(following.output) == len(outcome.folder["full"].data)
    many = run("for i in $(seq 3000); do echo > f$i || break; done")
    assert "No space left on device" in many.output or many.stop
    # Holes have no size on the disk, but the folder that comes back has.
    sparse = run("truncate -s 3M x y z")
    assert (sparse.stop, sparse.folder) == ("folder", FOLDER)
    assert run("truncate -s 1T x").status != 0
    # A path longer than the system allows cannot be read back.
    command = "for i in $(seq 9); do n=$(printf %0250d 0); mkdir -p $n/$n && cd $n/$n; done"
    deep = run(command, limits=CommandLimits(seconds=20, cpu_seconds=20))
    assert deep.stop == "folder"
    assert deep.cwd == ROOT


def test_memory_cannot_be_filled() -> None:
    limits = CommandLimits(memory=64 << 20, seconds=10)
    # One process fails by itself; many together are stopped.
    single = run("head -c 900m /dev/zero | tail > /dev/null", limits=limits)
    assert single.stop == "memory" or "memory exhausted" in single.output
    command = "for i in 1 2 3 4; do (head -c 40m /dev/zero | tail -c 40m | sleep 947) & done; wait"
    assert run(command, limits=limits).stop == "memory"
    assert_gone("947")


def test_memory_of_no_process_is_refused() -> None:
    if not has_python():
        pytest.skip("no Python in the sandbox")
    script = "import mmap; mmap.mmap(-1, 4096, mmap.{}); print('mapped')"
    assert run(f'python3 -c "{script.format("MAP_PRIVATE")}"').output == "mapped\n"
    assert "PermissionError" in run(f'python3 -c "{script.format("MAP_SHARED")}"').output
    zero = "import mmap; zero = open('/dev/zero', 'r+b'); mmap.mmap(zero.fileno(), 4096)"
    assert "PermissionError" in run(f'python3 -c "{zero}"').output


@pytest.mark.parametrize(
    "command",
    [
        "sleep 948",
        "cat /dev/zero > /dev/null",
        "exec 1>&- 2>&-; sleep 948",
        "trap '' TERM INT HUP QUIT; while :; do sleep 948; done",
        "kill -STOP $$",
        "mkfifo pipe; cat pipe",
    ],
)
def test_waiting_for_ever_ends(command: str) -> None:
    outcome = run(command, limits=SHORT)
    assert outcome == CommandOutcome(-1, "", FOLDER, ROOT, "time")
    assert_gone("948")


def test_a_process_number_that_is_used_again_loses_no_time(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "7").mkdir()
    seconds: dict[tuple[str, bytes], float] = {}
    # proc(5), from field 3 on: 14 and 15 are the time, 22 is the start.
    for own, start in ((2, 5), (3, 5), (1, 9)):
        fields = ["S"] + ["0"] * 21
        fields[11], fields[12], fields[19] = str(own * ticks), "0", str(start)
        (tmp_path / "7/stat").write_text(f"7 (a ) b) {' '.join(fields)}\n")
        descriptor = os.open(tmp_path, os.O_RDONLY)
        launcher._measure_usage(descriptor, seconds)
        os.close(descriptor)
    assert sum(seconds.values()) == 3 + 1


def test_cpu_time_is_that_of_all_processes() -> None:
    limits = CommandLimits(cpu_seconds=1, seconds=60)
    assert run("while :; do :; done", limits=limits).stop == "time"
    assert run("while :; do :; done & wait", limits=limits).stop == "time"
    many = "for i in $(seq 80); do (n=0; while [ $n -lt 20000 ]; do ((n++)); done); done"
    assert run(many, limits=limits).stop == "time"
    if has_python():
        # Children that nobody waits for: the kernel adds their time to no process.
        script = (
            "import os, signal, time\n"
            "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
            "for _ in range(12):\n"
            "    if os.fork() == 0:\n"
            "        while time.process_time() < 0.2: pass\n"
            "        os._exit(0)\n"
            "    try: os.wait()\n"
            "    except ChildProcessError: pass\n"
        )
        assert run(f'python3 -c "{script}"', limits=limits).stop == "time"


def test_nothing_outlives_the_command() -> None:
    outcome = run(
        "(trap '' TERM HUP; setsid sleep 949 > /dev/null 2>&1 &) ; "
        "(sleep 0.3; echo late >> a) & nohup sleep 949 & disown; echo done"
    )
    assert outcome.output == "done\n"
    assert outcome.folder["a"] == FOLDER["a"]
    assert_gone("949")


def test_the_first_process_cannot_be_hurt() -> None:
    outcome = run("kill -9 1; kill -STOP 1; prlimit --pid 1 --cpu=1; kill -9 -1; echo alive")
    assert outcome.stop == ""
    assert outcome.folder == FOLDER
    assert run("echo well").output == "well\n"


def test_output_is_limited_and_may_be_anything() -> None:
    assert run("yes").stop == "output"
    assert run("yes > /dev/null & sleep 0.2; echo x").output == "x\n"
    assert run("head -c 300 /dev/zero").output == "\0" * 300
    assert run("printf '\\033[2J\\377\\n'").output == "\x1b[2J\xff\n"
    # The descriptor of the working directory takes any amount, and no lie.
    assert run("yes >&9 & sleep 0.2; printf '/etc\\n/usr' >&9").cwd == ROOT


def test_odd_names_and_kinds_come_back(tmp_path: Path) -> None:
    command = "printf x > $'\\xff\\n \\'\"'; mkfifo pipe; mkdir -m 000 locked; cp -l a hard; ls -A"
    outcome = run(command)
    assert outcome.folder["\udcff\n '\""].data == "x"
    assert "pipe" not in outcome.folder
    assert outcome.folder["locked"] == FolderEntry("folder", 0)
    assert outcome.folder["hard"] == outcome.folder["a"]
    assert run("ls -A; rmdir locked", folder=outcome.folder).status == 0
    write_folder(str(tmp_path), FOLDER)
    assert read_folder(str(tmp_path), DEFAULT) == FOLDER
    assert (tmp_path / "a").stat().st_mtime == 0
    assert stat.S_IMODE((tmp_path / "sub/b").stat().st_mode) == 0o755


def test_commands_run_at_the_same_time() -> None:
    with ThreadPoolExecutor(4) as pool:
        commands = [f"echo {number} > a; sleep 0.2; cat a" for number in range(8)]
        outputs = [outcome.output for outcome in pool.map(run, commands)]
    assert outputs == [f"{number}\n" for number in range(8)]
