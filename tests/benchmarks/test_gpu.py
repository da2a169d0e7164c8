"""The accelerator benchmark runs without an accelerator in its smallest form."""

import json
import os
import subprocess
import sys
from pathlib import Path

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
    assert 0 < record["train"]["mfu"] < 1
    assert 0 < record["decode"]["share_of_bound"] < 1
