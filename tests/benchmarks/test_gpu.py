"""The accelerator benchmark runs without an accelerator in its smallest form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_smoke_run_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    command = [sys.executable, "benchmarks/gpu.py", "--shape", "tiny", "--platform", "cpu", "--repeats", "1"]
    done = subprocess.run(
        [*command, "--microbatches", "1", "--remat", "none", "--out", str(out)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    record = json.loads(out.read_text())
    assert record["ceilings"] == "measured"
    decode = record["decode"]
    # No upper bounds: on a busy machine the ceilings come out low, and a tiny model is read from the processor's cache.
    assert record["train"]["mfu"] > 0
    assert decode["share_of_bound"] > 0
    assert decode["tokens_per_s"] * decode["ms_a_step"] == pytest.approx(1e3 * decode["slots"], rel=0.02)
