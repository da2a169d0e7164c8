"""One host of a run fails or is told to stop: all hosts end soon, with one checkpoint and one
message.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gigpo_jax.env_bridge.freeze import freeze_panel, write_panel
from gigpo_jax.envs import registry

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
CONFIG = "tests/configs/example.py"
LIMIT_S = 600

# The program of the last host: in its second rollout something happens to it.
FAILS = """
import asyncio, os, runpy, signal, sys, time
from pathlib import Path
from gigpo_jax.engines.base import EngineLost
from gigpo_jax.engines.jax.jax_engine import JaxEngine
what, record, *argv = sys.argv[1:]
original = JaxEngine.generate
async def generate(self, *request, **weights):
    if self._newest.version == 1 and not Path(record).exists():
        Path(record).write_text(str(time.time()))
    if self._newest.version == 1 and what == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    elif self._newest.version == 1:
        raise {"lost": EngineLost("no server is left"), "aborted": ValueError("too long")}[what]
    return await original(self, *request, **weights)
JaxEngine.generate = generate
sys.argv = ["main.py", *argv]
runpy.run_module("gigpo_jax.main", run_name="__main__")
"""
# The program of the last host: a function of a module fails, or a signal comes when it is called.
FAILS_AT = """
import importlib, os, runpy, signal, sys, time
from pathlib import Path
module, path, what, record, *argv = sys.argv[1:]
*holders, name = path.split(".")
holder = importlib.import_module(module)
for each in holders:
    holder = getattr(holder, each)
original = getattr(holder, name)
def function(*args, **how):
    if not Path(record).exists():
        Path(record).write_text(str(time.time()))
        if what != "signal":
            raise RuntimeError(what)
        os.kill(os.getpid(), signal.SIGTERM)
    return original(*args, **how)
setattr(holder, name, function)
sys.argv = ["main.py", *argv]
runpy.run_module("gigpo_jax.main", run_name="__main__")
"""
SAYS = {
    "signal": (143, "stopped after iteration 1; the same command continues from there"),
    "lost": (1, "stopped in iteration 2: no server is left"),
    "aborted": (1, "episodes were aborted, too many to continue"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    small = (
        "--mode=sft",
        "--config.sft.episodes=16",
        "--config.sft.epochs=1",
        f"--out={folder / 'model'}",
    )
    (sft,) = start(1, folder / "sft", *small)
    assert sft.wait(LIMIT_S) == 0
    return folder / "model"


def start(
    hosts: int, workdir: Path, *flags: str, last: tuple[str, ...] = ()
) -> list[subprocess.Popen[str]]:
    """The processes of a run; the last one runs another program."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [f"--config={CONFIG}", f"--workdir={workdir}", *flags]
    if hosts > 1:
        command += ["--config.distributed=True", f"--config.mesh.fsdp={hosts}"]
    started = []
    for host in range(hosts):
        env = {
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_NUM_PROCESSES": str(hosts),
            "JAX_PROCESS_ID": str(host),
        }
        env |= {
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            "JAX_PLATFORMS": "cpu",
            "TQDM_DISABLE": "1",
        }
        program = last if last and host == hosts - 1 else ("-m", "gigpo_jax.main")
        started.append(
            subprocess.Popen(
                [sys.executable, *program, *command],
                env=os.environ | env,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return started


@pytest.mark.parametrize(
    ("hosts", "what"),
    [
        (2, "signal"),
        pytest.param(2, "lost", marks=pytest.mark.long),
        pytest.param(2, "aborted", marks=pytest.mark.long),
        pytest.param(4, "signal", marks=pytest.mark.long),
        pytest.param(4, "lost", marks=pytest.mark.long),
    ],
)
def test_one_host_that_stops_ends_all_with_one_checkpoint_and_one_message(
    hosts: int, what: str, model: Path, tmp_path: Path
) -> None:
    flags = (
        f"--config.model.path={model}",
        "--config.checkpoint.every=1000",
        "--config.eval.every=0",
    )
    workdir = tmp_path / "run"
    record = tmp_path / "when"
    processes = start(hosts, workdir, *flags, last=("-c", FAILS, what, str(record)))
    try:
        outputs = [process.communicate(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert time.time() - float(record.read_text()) < 60
    status, message = SAYS[what]
    assert [process.returncode for process in processes] == [status] * hosts, outputs
    told = [line for out, _ in outputs for line in out.splitlines() if "stopped" in line]
    assert len(told) == 1, told
    assert told[0].startswith(f"host {hosts - 1} stopped ")
    assert message in told[0]
    assert [path.name for path in (workdir / "checkpoints").iterdir()] == ["1"]
    steps = [
        json.loads(line)["step"] for line in (workdir / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == [0, 1][-len(steps) :]
    if (hosts, what) != (2, "lost"):
        return
    again = start(hosts, workdir, *flags)
    outputs = [process.communicate(timeout=LIMIT_S) for process in again]
    assert [process.returncode for process in again] == [0] * hosts, outputs
    assert "continuing after iteration 1" in outputs[0][0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "module", "function", "what", "saved"),
    [
        (
            "train",
            "modes.train",
            "local_rows",
            "broken",
            [],
        ),  # the other host then waits in a computation
        ("train", "modes.train", "RolloutWorker", "broken", []),
        ("train", "modes.evaluate", "Evaluator.play", "broken", []),
        ("train", "modes.evaluate", "Evaluator.play", "signal", ["0"]),
        ("eval", "modes.evaluate", "RolloutWorker", "broken", []),
        ("eval", "modes.evaluate", "Evaluator.play", "signal", []),
        ("sft", "modes.sft", "demonstrate_episode", "broken", []),
        ("sft", "modes.imitation", "Imitation._make_update", "signal", ["1"]),
        ("sft", "modes.imitation", "Imitation._make_update", "broken", []),
    ],
)
def test_one_host_that_fails_in_set_up_evaluation_or_imitation_ends_all(
    mode: str, module: str, function: str, what: str, saved: list[str], model: Path, tmp_path: Path
) -> None:
    env = registry.make("example", drawers=2, games=16)
    write_panel(tmp_path / "panel.json", freeze_panel("drawers", "example", env, "test"))
    workdir = tmp_path / "run"
    record = tmp_path / "when"
    flags = [
        f"--mode={mode}",
        f"--config.model.path={model}",
        f"--config.eval.panel={tmp_path / 'panel.json'}",
    ]
    flags += ["--initial"] * (mode == "eval")
    last = ("-c", FAILS_AT, f"gigpo_jax.{module}", function, what, str(record))
    processes = start(2, workdir, *flags, last=last)
    try:
        outputs = [process.communicate(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert time.time() - float(record.read_text()) < 60
    assert [process.returncode for process in processes] == [143 if what == "signal" else 1] * 2, (
        outputs
    )
    told = [line for out, _ in outputs for line in out.splitlines() if "stopped" in line]
    assert len(told) == 1, outputs
    assert told[0].removeprefix("not evaluated: ").startswith("host 1 stopped")
    assert what == "signal" or f"stopped: RuntimeError: {what}" in told[0]
    assert [path.name for path in workdir.glob("checkpoints/*")] == saved
