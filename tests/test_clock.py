"""The clock of the system is set, by ten years, while a run goes on: nothing happens."""

import json
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from gigpo_jax.run.loggers.loggers import Start
from gigpo_jax.run.loggers.tensorboard import TensorBoard
from tests.runs import LIMIT_S, command, flags, wait_for_iteration

pytestmark = pytest.mark.slow

__all__ = ["flags"]

TEN_YEARS_S = 10 * 365 * 86_400
# Python imports this module at every start, in workers too. The clock of the machine must not be
# set: others use it.
SITECUSTOMIZE = """
import os, time

def move(clock, unit):
    def read():
        moved = os.path.exists(os.environ["MOVE_FILE"])
        return clock() + (int(os.environ["MOVE_S"]) * unit if moved else 0)
    return read

time.time = move(time.time, 1)
time.time_ns = move(time.time_ns, 10**9)
"""
BAR = """
import os, pathlib, time
from gigpo_jax.run.progress import Bar

bar = Bar("work", 4, "steps", 0)
bar.update()
pathlib.Path(os.environ["MOVE_FILE"]).touch()
assert abs(time.time() - os.stat(os.environ["MOVE_FILE"]).st_mtime) > 10**8
bar.update(2)
bar.redraw()
"""


def moved_clock(folder: Path, seconds: int) -> dict[str, str]:
    """Variables for a process whose clock moves when the file MOVE_FILE appears."""
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    moves = {"MOVE_FILE": str(folder / "now"), "MOVE_S": str(seconds), "PYTHONPATH": path}
    return os.environ | moves


def numbers(workdir: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without those that are of time."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    timed = ("time/", "throughput/")
    return [
        {name: value for name, value in json.loads(line).items() if not name.startswith(timed)}
        for line in lines
    ]


def train(workdir: Path, environment: dict[str, str], flags: list[str]) -> str:
    """Trains for four iterations; the clock moves after the first one. Returns what it printed."""
    words = [*flags, "--config.train.iterations=4", "--config.checkpoint.every=1"]
    process = subprocess.Popen(
        command(workdir, "train", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        wait_for_iteration(process, workdir, 1)
        Path(environment["MOVE_FILE"]).touch()
        output, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, output
    return output


@pytest.mark.long
def test_a_run_does_not_notice_that_the_clock_was_set(flags: list[str], tmp_path: Path) -> None:
    outputs = {}
    for name, seconds in (("kept", 0), ("ahead", TEN_YEARS_S), ("back", -TEN_YEARS_S)):
        folder = tmp_path / name
        folder.mkdir()
        outputs[name] = train(folder / "run", moved_clock(folder, seconds), flags)
    for name in ("ahead", "back"):
        assert re.search("Traceback|Error|[Ww]arning", outputs[name]) is None
        assert numbers(tmp_path / name / "run") == numbers(tmp_path / "kept/run")
        for line in (tmp_path / name / "run/metrics.jsonl").read_text().splitlines():
            times = [value for key, value in json.loads(line).items() if key.startswith("time/")]
            assert all(0 <= seconds < LIMIT_S for seconds in times)


@pytest.mark.parametrize("seconds", [TEN_YEARS_S, -TEN_YEARS_S])
def test_bars_show_the_time_that_has_passed(seconds: int, tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    words = [sys.executable, "-c", BAR]
    subprocess.run(
        words, env=moved_clock(tmp_path, seconds), stderr=terminal, timeout=LIMIT_S, check=True
    )
    output = os.read(master, 65536).decode()  # of an open terminal: what was written is kept
    os.close(terminal)
    os.close(master)
    assert re.search(r"3/4 \[00:\d\d<", output)
    assert "8760" not in output  # hours of ten years


def test_events_of_a_resumed_run_sort_last_after_the_clock_was_put_back(tmp_path: Path) -> None:
    start = Start(folder=tmp_path, name="run", config={}, step=-1, done=-1, records=())
    TensorBoard(start).close()
    folder = tmp_path / "tensorboard/run"
    (first,) = folder.iterdir()
    ahead = first.rename(folder / "events.out.tfevents.2110812895.5.host.1")
    (folder / "events.out.tfevents.other").touch()
    TensorBoard(start).close()
    (second,) = {*folder.iterdir()} - {ahead, folder / "events.out.tfevents.other"}
    assert sorted([second, ahead]) == [ahead, second]
