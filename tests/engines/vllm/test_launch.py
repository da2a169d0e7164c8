"""Servers that we start: their command and environment, what is refused before, and their end in
any case.
"""

import contextlib
import json
import os
import pathlib
import pkgutil
import signal
import subprocess
import sys

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.vllm import launch as vllm_launch
from gigpo_jax.engines.vllm.launch import (
    ServerProcess,
    VllmSettings,
    check_settings,
    free_ports,
    server_environment,
)
from tests.processes import gone, wait_until

ROOT = pathlib.Path(__file__).parents[3]
TREE = (
    "import subprocess, sys, time; p = subprocess.Popen(['sleep', '300']); "
    "print(p.pid, flush=True); time.sleep(300)"
)


def settings(tmp_path: pathlib.Path, **changes: object) -> VllmSettings:
    fields = {
        "python": pathlib.Path(sys.executable),
        "model": ROOT / "models/alfworld_tiny",
        "dtype": "float32",
        "max_length": 96,
        "sequences": 64,
        "weights_dir": tmp_path,
        "folder": tmp_path,
        "gpu": False,
    }
    return VllmSettings(**(fields | changes))


def test_the_key_is_in_the_environment_and_on_no_command_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "x")
    environment = server_environment(settings(tmp_path), "sesame")
    assert environment["VLLM_API_KEY"] == "sesame"
    assert environment["GIGPO_WEIGHTS_DIR"] == str(tmp_path)
    assert "XLA_FLAGS" not in environment
    command = vllm_launch.server_command(settings(tmp_path), 8123)
    assert not any("sesame" in part for part in command)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert "--no-enable-chunked-prefill" in command
    # The learner's logits are float32.
    assert json.loads(command[command.index("--hf-overrides") + 1]) == {"head_dtype": "float32"}
    on_gpu = vllm_launch.server_command(settings(tmp_path, gpu=True, gpu_memory_fraction=0.5), 8123)
    assert on_gpu[on_gpu.index("--gpu-memory-utilization") + 1] == "0.5"
    assert "--no-enable-chunked-prefill" not in on_gpu


def test_on_cpus_memory_of_a_load_is_kept_unless_malloc_has_settings(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert "mmap_threshold" in server_environment(settings(tmp_path), "")["GLIBC_TUNABLES"]
    assert "GLIBC_TUNABLES" not in server_environment(settings(tmp_path, gpu=True), "")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    assert server_environment(settings(tmp_path), "")["GLIBC_TUNABLES"] == "glibc.malloc.check=1"


def test_servers_take_adapters_only_when_asked(tmp_path: pathlib.Path) -> None:
    plain = vllm_launch.server_command(settings(tmp_path), 8123)
    assert "--enable-lora" not in plain
    assert server_environment(settings(tmp_path), "")["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "0"
    for rank, served in ((1, "1"), (2, "8"), (32, "32"), (33, "64"), (512, "512")):
        command = vllm_launch.server_command(settings(tmp_path, lora_rank=rank), 8123)
        assert command[command.index("--max-lora-rank") + 1] == served
    for option in ("--worker-extension-cls", "--middleware"):
        assert isinstance(pkgutil.resolve_name(command[command.index(option) + 1]), type)
    assert (
        server_environment(settings(tmp_path, lora_rank=4), "")["VLLM_ALLOW_RUNTIME_LORA_UPDATING"]
        == "1"
    )


def test_too_little_memory_is_refused_with_the_sum(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    there = settings(tmp_path, python=tmp_path / "bin/python")
    monkeypatch.setattr(vllm_launch, "available_memory", lambda: 8 * 2**30)
    check_settings(there, 2)
    monkeypatch.setattr(vllm_launch, "available_memory", lambda: 5 * 2**30)
    with pytest.raises(
        InputError, match=r"config.engine.vllm.servers=2: needs about 6\.0 GiB .* 5\.0 are free"
    ):
        check_settings(there, 2)


def test_an_environment_without_vllm_is_refused_with_the_command_that_makes_one(
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(InputError, match="make vllm-venv"):
        check_settings(settings(tmp_path, python=tmp_path / "bin/python"), 1)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    (tmp_path / "pyvenv.cfg").touch()
    with pytest.raises(InputError, match="vLLM is not installed there"):
        check_settings(settings(tmp_path, python=tmp_path / "bin/python"), 1)
    (tmp_path / "pyvenv.cfg").unlink()
    with pytest.raises(InputError, match=r"config\.engine\.vllm\.servers=100000: needs about"):
        check_settings(settings(tmp_path, python=tmp_path / "bin/python"), 100_000)


def test_a_server_that_does_not_start_says_why(tmp_path: pathlib.Path) -> None:
    process = ServerProcess(settings(tmp_path), *free_ports(1), "sesame")
    warning = "print('WARNING open files may run out: OSError', flush=True)"
    process._command = [
        sys.executable,
        "-c",
        f"{warning}; raise ValueError('1 invalid value\\n  no such device')",
    ]
    process.start()
    assert wait_until(lambda: not process.running, 60)
    assert process.log_tail() == "ValueError: 1 invalid value no such device"
    process.stop()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill the learner", "kill the guard", "kill the server"])
def test_nothing_of_a_server_outlives_its_end(end: str, tmp_path: pathlib.Path) -> None:
    """The learner is a process of its own here; the server is one that starts another."""
    learner = (
        "import pathlib, sys, time; from tests.engines.vllm.test_launch import settings, ServerProcess\n"
        f"p = ServerProcess(settings(pathlib.Path({str(tmp_path)!r})), 1, 'k')\n"
        f"p._command = [sys.executable, '-c', {TREE!r}]\n"
        "p.start(); print(p._process.pid, flush=True); sys.stdin.readline(); p.stop()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", learner],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    guard = int(process.stdout.readline())
    assert (
        os.getsid(guard) == guard
    )  # so Ctrl-C ends the learner, which needs its servers to the last
    sleeper = _first_pid(tmp_path / "server_1.log")
    server = int(
        subprocess.run(
            ["ps", "-o", "ppid=", str(sleeper)], capture_output=True, text=True, check=True
        ).stdout
    )
    if end == "stop":
        process.stdin.write("\n")
        process.stdin.flush()
    else:
        victims = {
            "kill the learner": process.pid,
            "kill the guard": guard,
            "kill the server": server,
        }
        os.kill(victims[end], signal.SIGKILL)
    expected = {guard, server} | (set() if end == "kill the guard" else {sleeper})
    assert gone(expected, 30.0)
    for pid in (process.pid, sleeper):
        if pathlib.Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_a_server_that_will_not_end_is_killed_and_one_that_is_started_again_is_ended_first(
    tmp_path: pathlib.Path,
) -> None:
    deaf = (
        "import os, signal, time; signal.signal(15, signal.SIG_IGN); "
        "print(os.getpid(), flush=True); time.sleep(300)"
    )
    log = tmp_path / "out"
    guard = "from gigpo_jax.engines.vllm.worker import guard as g; g.GRACE_S = 0.5; "
    guard += f"g.guard_command([{sys.executable!r}, '-c', {deaf!r}])"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", guard], stdin=subprocess.PIPE, stdout=out, cwd=ROOT
        )
    assert process.stdin is not None
    pid = _first_pid(log)
    process.stdin.close()
    try:
        assert gone([pid], 30.0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        process.wait(30)
    again = ServerProcess(settings(tmp_path), 1, "k")
    again._command = [sys.executable, "-c", TREE]
    again.start()
    first = _first_pid(again.log)
    again.start()
    try:
        assert gone([first], 30.0)
        assert again.running
    finally:
        again.stop()


def _first_pid(log: pathlib.Path) -> int:
    assert wait_until(lambda: log.exists() and log.read_text().strip() != "", 60)
    return int(log.read_text().split()[0])
