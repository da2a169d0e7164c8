"""Equal runs have equal metrics, whatever else the machine does and whatever is compiled already."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gigpo_jax.env_bridge.paths import cache_folder
from gigpo_jax.run.machine_types import read_types

ITERATIONS = 3
LOAD = "while True: pass"
UNEQUAL = ("time/", "throughput/")


def train(workdir: Path, cache: Path, cores: set[int]) -> list[dict[str, Any]]:
    """The records of a short run of the quickstart with a cache folder of its own."""
    cache.mkdir(exist_ok=True)
    games = cache / "alfworld"
    if not games.exists():
        games.symlink_to(cache_folder("alfworld"))
    words = [sys.executable, "-m", "gigpo_jax.main", "--config=configs/quickstart.py"]
    words += [f"--workdir={workdir}", f"--config.train.iterations={ITERATIONS}"]
    environment = os.environ | {"GIGPO_JAX_CACHE": str(cache)}
    subprocess.run(
        words,
        check=True,
        env=environment,
        timeout=800,
        capture_output=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def keep_repeatable(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if not name.startswith(UNEQUAL)}


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_three_iterations_are_equal_alone_and_beside_a_load(tmp_path: Path) -> None:
    """The first run compiles its programs, the second one, beside the load, reads them.

    The second one also has a single core: the config fixes the number of threads.
    """
    cores = os.sched_getaffinity(0)
    alone = train(tmp_path / "alone", tmp_path / "cache", cores)
    # All programs are compiled before the end of the first iteration.
    assert len({record["compile/count"] for record in alone[1:]}) == 1
    assert all("time/compile" not in record for record in alone[2:])
    assert list((tmp_path / "cache" / "programs").glob("*/*-cache"))

    load = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(os.cpu_count() or 1)]
    try:
        beside = train(tmp_path / "beside", tmp_path / "cache", {min(cores)})
    finally:
        for process in load:
            process.kill()
            process.wait()
    assert len(alone) == ITERATIONS + 1
    assert [keep_repeatable(record) for record in beside] == [
        keep_repeatable(record) for record in alone
    ]
    assert read_types(tmp_path / "alone") == read_types(tmp_path / "beside") != ()
