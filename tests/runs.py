"""Runs of a small config in processes of their own."""

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
    folder = tmp_path_factory.mktemp("warm")
    done = run(folder / "sft", "sft", f"--out={folder / 'model'}")
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
