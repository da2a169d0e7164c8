"""Rollouts during updates: the age of their weights, their devices, and stopped runs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.metrics import records
from tests.runs import wait_for_iteration
from tests.test_host_stops import start

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIMIT_S = 500


def test_rollouts_run_during_updates_with_weights_of_a_fixed_age_also_in_a_resumed_run(
    tmp_path: Path,
) -> None:
    env = {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "2",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.learner.ahead", str(tmp_path)],
        env=os.environ | env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout.endswith("equal\n"), done.stderr


@pytest.mark.long
def test_two_hosts_with_devices_for_their_engines_stop_and_continue_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    small = (
        "--mode=sft",
        "--config.sft.episodes=16",
        "--config.sft.epochs=1",
        f"--out={tmp_path / 'model'}",
    )
    (sft,) = start(1, tmp_path / "sft", *small)
    assert sft.wait(LIMIT_S) == 0
    flags = (
        f"--config.model.path={tmp_path / 'model'}",
        "--config.rl.entropy_coef=0.1",
        "--config.engine.devices=1",
    )
    flags += (
        "--config.train.max_staleness=2",
        "--config.train.save_rollouts=1",
        "--config.train.iterations=5",
    )
    for name, status in (("whole", 0), ("stopped", 143), ("stopped", 0)):
        hosts = start(2, tmp_path / name, *flags)
        try:
            if status:
                wait_for_iteration(hosts[0], tmp_path / name, 2)
                hosts[1].send_signal(signal.SIGTERM)
            outputs = [host.communicate(timeout=LIMIT_S) for host in hosts]
        finally:
            for host in hosts:
                host.kill()
        assert [host.returncode for host in hosts] == [status] * 2, outputs
    ages = [step["rollout/staleness"] for step in records(tmp_path / "whole")[1:]]
    assert ages == [0, 1, 2, 2, 2]
    assert records(tmp_path / "stopped") == records(tmp_path / "whole")
    for path in (tmp_path / "whole" / "rollouts").iterdir():
        assert (tmp_path / "stopped" / "rollouts" / path.name).read_bytes() == path.read_bytes()
