"""Whole runs in processes of their own that meet a signal, a full disk or another run: one line and
the status.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gigpo_jax.env_bridge.freeze import freeze_panel, write_panel
from gigpo_jax.envs import registry
from tests.small_disk import SmallDisk

pytestmark = pytest.mark.slow

CONFIG = "tests/configs/example.py"
LIMIT_S = 240
SMALL = ("--config.sft.episodes=16", "--config.sft.epochs=1")

Run = subprocess.Popen[str]


def start(
    workdir: Path,
    mode: str = "train",
    *flags: str,
    code: tuple[str, ...] = ("-m", "gigpo_jax.main"),
) -> Run:
    command = [
        sys.executable,
        *code,
        f"--config={CONFIG}",
        f"--workdir={workdir}",
        f"--mode={mode}",
        *flags,
    ]
    quiet = os.environ | {"TQDM_DISABLE": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quiet
    )


def end(run: Run) -> tuple[int, list[str]]:
    """The status of a run, and the lines that it wrote to stderr."""
    try:
        _, err = run.communicate(timeout=LIMIT_S)
    finally:
        run.kill()
    return run.returncode, err.splitlines()


def wait_until(run: Run, path: Path, text: str) -> None:
    """Returns when a file has a text."""
    until = time.monotonic() + LIMIT_S
    while not (path.exists() and text in path.read_text()):
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A model and a panel, as flags for every run of this module."""
    folder = tmp_path_factory.mktemp("model")
    assert end(start(folder / "sft", "sft", *SMALL, f"--out={folder / 'model'}"))[0] == 0
    env = registry.make("example", drawers=2, games=16)
    write_panel(folder / "panel.json", freeze_panel("drawers", "example", env, "test"))
    return [
        f"--config.model.path={folder / 'model'}",
        f"--config.eval.panel={folder / 'panel.json'}",
        *SMALL,
    ]


@pytest.fixture(scope="module")
def trained(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir of a run."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    assert end(start(workdir, "train", *flags, "--config.train.iterations=1"))[0] == 0
    return workdir


SIGNALLED = """
import importlib, itertools, os, runpy, sys
module, name, number, call, *argv = sys.argv[1:]
where = importlib.import_module(module)
original = getattr(where, name)
calls = itertools.count(1)
def signalled(*args, **kwargs):
    if next(calls) == int(call):
        os.kill(os.getpid(), int(number))
    return original(*args, **kwargs)
setattr(where, name, signalled)
sys.argv = ["main.py", *argv]
runpy.run_module("gigpo_jax.main", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("mode", "module", "name", "number"),
    [
        ("train", "gigpo_jax.config.command_line", "load_config", signal.SIGINT),
        ("train", "gigpo_jax.modes.train", "RolloutWorker", signal.SIGTERM),
        ("eval", "gigpo_jax.rollout.worker", "rollout", signal.SIGINT),
        ("sft", "gigpo_jax.modes.sft", "demonstrate_episode", signal.SIGTERM),
        ("export", "gigpo_jax.modes.export", "save_policy", signal.SIGTERM),
    ],
)
def test_a_signal_outside_of_training_is_one_line_and_its_status(
    mode: str,
    module: str,
    name: str,
    number: signal.Signals,
    trained: Path,
    flags: list[str],
    tmp_path: Path,
):
    workdir = trained if mode in ("eval", "export") else tmp_path / "run"
    code = ("-c", SIGNALLED, module, name, str(int(number)), "1")
    out = [f"--out={tmp_path / 'out'}"] if mode != "train" else []
    run = start(
        workdir,
        mode,
        *flags,
        *out,
        *["--config.train.iterations=1"] * (workdir == trained),
        code=code,
    )
    assert end(run) == (128 + number, [f"gigpo_jax: stopped by {number.name}"])
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_signal_in_the_greedy_half_of_an_evaluation_leaves_the_sampled_one(
    trained: Path, flags: list[str], tmp_path: Path
):
    out = tmp_path / "eval.json"
    number = signal.SIGTERM
    code = ("-c", SIGNALLED, "gigpo_jax.rollout.worker", "rollout", str(int(number)), "2")
    words = (*flags, f"--out={out}", "--config.train.iterations=1")
    assert end(start(trained, "eval", *words, code=code)) == (
        128 + number,
        [f"gigpo_jax: stopped by {number.name}"],
    )
    (label,) = json.loads(out.read_text())["results"]
    assert label.startswith("temperature")


def test_a_second_run_in_a_folder_is_refused_and_the_first_goes_on(
    flags: list[str], tmp_path: Path
):
    first = start(tmp_path / "run", "train", *flags)
    wait_until(first, tmp_path / "run" / "metrics.jsonl", '"step": 1,')
    first.send_signal(signal.SIGSTOP)
    status, lines = end(start(tmp_path / "run", "train", *flags))
    first.send_signal(signal.SIGCONT)
    assert end(first)[0] == 0
    assert (status, len(lines)) == (2, 1), lines
    assert f"--workdir={tmp_path / 'run'}: in use by process {first.pid} on " in lines[0]
    steps = [
        json.loads(line)["step"]
        for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == list(range(7))


@pytest.mark.parametrize("kib", [120, 500])
def test_a_full_disk_ends_a_run_with_one_line_and_a_larger_one_lets_it_go_on(
    kib: int, flags: list[str], small_disk: SmallDisk
):
    disk = small_disk(kib)
    status, lines = end(start(disk / "run", "train", *flags))
    assert status == 1
    assert lines[-1].startswith(f"gigpo_jax: {disk}/run/")
    assert (
        "(No space left on device); free space or mend the disk, then run the same command"
        in lines[-1]
    )
    assert all(
        "the logger tensorboard failed (No space left on device)" in line for line in lines[:-1]
    ), lines
    good = [
        int(path.name) for path in (disk / "run" / "checkpoints").iterdir() if path.name.isdecimal()
    ]
    assert bool(good) == (kib == 500)
    subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
    run = start(disk / "run", "train", *flags)
    out, err = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, err
    assert not good or f"continuing after iteration {max(good)}" in out
    steps = [
        json.loads(line)["step"]
        for line in (disk / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == list(range(7))


def test_a_disk_that_takes_no_further_folder_ends_an_imitation_at_once(
    small_disk: SmallDisk, tmp_path: Path
):
    workdir = small_disk(20_000, inodes=11) / "run"
    status, (line,) = end(start(workdir, "sft", *SMALL, f"--out={tmp_path / 'model'}"))
    assert status == 1
    assert line.startswith(
        f"gigpo_jax: {workdir}/checkpoints: a checkpoint cannot be written (No space left on"
    )


def test_a_worker_that_dies_in_set_up_ends_the_run_with_one_line(flags: list[str], tmp_path: Path):
    run = start(
        tmp_path / "run",
        "train",
        flags[0],
        "--config.env.name=tests.chaos.environments:DIES_AT_START",
    )
    status, (line,) = end(run)
    assert status == 1
    assert line.startswith("gigpo_jax: environment worker 0 (process ")
    assert line.endswith("died with status 3 (start)")
