"""Runs of a small config, in this process or in their own."""

import contextlib
import io
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gigpo_jax.env_bridge.freeze import freeze_panel, write_panel
from gigpo_jax.envs import registry
from tests.processes import patience

CONFIG = "tests/configs/example.py"
LIMIT_S = patience(240)


def command(workdir: Path, mode: str = "train", *flags: str) -> list[str]:
    base = [
        sys.executable,
        "-m",
        "gigpo_jax.main",
        f"--config={CONFIG}",
        f"--workdir={workdir}",
        f"--mode={mode}",
    ]
    return [*base, *flags]


def run(workdir: Path, mode: str = "train", *flags: str) -> subprocess.CompletedProcess[str]:
    """A run in this process, which has jax and programs already.

    Messages of `logging` are not in `stderr`.
    """
    from gigpo_jax.main import main

    words = command(workdir, mode, *flags)
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        status = main(words[3:])
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def run_process(workdir: Path, mode: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """A run in a process of its own, which reads the environment's variables anew."""
    words = command(workdir, mode, *flags)
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def start_process(workdir: Path, mode: str, *flags: str) -> subprocess.Popen[str]:
    """Starts a run in a process of its own."""
    words = command(workdir, mode, *flags)
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_two_hosts(workdir: Path, *flags: str) -> None:
    """A run of two processes, each a host with one device."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = command(workdir, "train", *flags, "--config.distributed=True")
    hosts = []
    for number in range(2):
        env = {
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_NUM_PROCESSES": "2",
            "JAX_PROCESS_ID": str(number),
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        }
        hosts.append(
            subprocess.Popen(started, env=os.environ | env, stderr=subprocess.PIPE, text=True)
        )
    errors = [host.communicate(timeout=LIMIT_S)[1] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], errors


def wait_for_iteration(process: subprocess.Popen, workdir: Path, step: int) -> None:
    metrics = workdir / "metrics.jsonl"
    until = time.monotonic() + LIMIT_S
    while not (metrics.exists() and f'"step": {step},' in metrics.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="session")
def flags(shared_folder: Path) -> list[str]:
    """A warm-started model and a panel, as flags for every run."""
    return warm_start(shared_folder / "warm")


def warm_start(folder: Path, *own: str) -> list[str]:
    """Makes a model and a panel, once for all workers; the flags of runs with them.

    Without flags of its own the model never wins; with 40 epochs it wins a third of the games.
    """
    from filelock import FileLock

    model = folder / "model"
    panel = folder / "panel.json"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        if not panel.exists():
            done = run(folder / "sft", "sft", f"--out={model}", *own)
            assert done.returncode == 0, done.stderr
            env = registry.make("example", drawers=2, games=16)
            write_panel(panel, freeze_panel("drawers", "example", env, "test"))
    return [
        f"--config.model.path={model}",
        f"--config.eval.panel={panel}",
        "--config.train.refill_groups=2",
    ]
