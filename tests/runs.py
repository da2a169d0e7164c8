"""Runs of a small config in processes of their own."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gigpo_jax.env_bridge.panels import freeze_panel, write_panel
from gigpo_jax.envs import registry

CONFIG = "tests/configs/example.py"
LIMIT_S = 240


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
    done = command(workdir, mode, *flags)
    return subprocess.run(done, capture_output=True, text=True, timeout=LIMIT_S, check=False)


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


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A warm-started model and a panel, as flags for every run of this module."""
    return warm_start(tmp_path_factory.mktemp("warm"))


def warm_start(folder: Path, *own: str) -> list[str]:
    """Makes a model and a panel; the flags of runs with them.

    Without flags of its own the model never wins; with 40 epochs it wins a third of the games.
    """
    done = run(folder / "sft", "sft", f"--out={folder / 'model'}", *own)
    assert done.returncode == 0, done.stderr
    env = registry.make("example", drawers=2, games=16)
    write_panel(folder / "panel.json", freeze_panel("drawers", "example", env, "test"))
    model = folder / "model"
    panel = folder / "panel.json"
    return [
        f"--config.model.path={model}",
        f"--config.eval.panel={panel}",
        "--config.train.refill_groups=2",
    ]
