"""The accelerator benchmark runs without an accelerator in its smallest form."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(out: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "benchmarks/gpu.py",
        "--shape",
        "tiny",
        "--platform",
        "cpu",
        "--repeats",
        "1",
    ]
    return subprocess.run(
        [*command, "--microbatches", "1", "--remat", "none", "--out", str(out), *flags],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
def test_all_parts_run_on_a_cpu(tmp_path: Path) -> None:
    done = run(tmp_path / "gpu.json")
    assert done.returncode == 0, (done.stdout, done.stderr[-2000:])
    assert "device kind 'cpu' is not in DEVICES" in done.stderr
    assert "--peak-tflops" in done.stderr
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["ceilings"] == "measured"
    decode = record["decode"]
    # No upper bounds: on a busy machine the ceilings come out low, and a tiny model is read from
    # the processor's cache.
    assert record["train"]["mfu"] > 0
    assert decode["share_of_bound"] > 0
    assert decode["tokens_per_s"] * decode["ms_a_step"] == pytest.approx(
        1e3 * decode["slots"], rel=0.02
    )
    assert record["prefill"]["mfu"] > 0
    kernels = {name: value for name, value in record["attention"].items() if name.endswith("_ms")}
    assert {name for name, value in kernels.items() if value is None} == {
        "train_cudnn_ms",
        "decode_cudnn_ms",
    }
    whole = record["iteration"]
    assert whole["steps"] == 2 * 2 * 2
    assert 0 < whole["generated_tokens"] <= whole["steps"] * whole["response_tokens"] == 32
    assert whole["seconds"] > whole["update_with_compilation_s"] - whole["compile_s"] > 0
    for part in ("train", "decode"):
        trace = gzip.decompress((tmp_path / f"gpu.{part}.trace.json.gz").read_bytes())
        assert len(json.loads(trace)["traceEvents"]) > 10


@pytest.mark.slow
def test_old_and_new_ways_are_measured_side_by_side(tmp_path: Path) -> None:
    sizes = ("--rows", "1", "--row-length", "128", "--prefill-rows", "4", "--max-steps", "2")
    done = run(tmp_path / "gpu.json", "--compare", *sizes)
    assert done.returncode == 0, (done.stdout, done.stderr[-2000:])
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["decode_stacked"]["stacked"] > record["decode"]["stacked"]
    assert record["chunks_stacked"]["stacked"] > record["chunks"]["stacked"]
    # The engine's scores are old scores too: one program less is compiled and run.
    times = [
        record[label]["update_with_compilation_s"] for label in ("iteration", "iteration_fast")
    ]
    assert min(times) > 0


@pytest.mark.slow
def test_shares_are_of_the_ceilings_that_are_given(tmp_path: Path) -> None:
    given = ("--peak-tflops", "0.001", "--bandwidth-gb", "0.001")
    done = run(tmp_path / "gpu.json", "--parts", "train", "decode", *given)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "DEVICES" not in done.stderr
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert (record["ceilings"], record["peak_tflops"], record["bandwidth_gb_per_s"]) == (
        "flags",
        0.001,
        0.0,
    )
    train = record["train"]
    decode = record["decode"]
    # By hand, of 2 layers of width 64, inner 128, 4 heads on 2 of width 16: matrices 2 x (2 x 64 x
    # 64 + 2 x 64 x 32 + 3 x 64 x 128) = 73,728 weights, the vocabulary product 512 x 64 = 32,768. A
    # decode step reads both and, of 4 slots, 32 + 4 / 2 places of 2 x 2 x 2 x 16 numbers, four
    # bytes each.
    read = 4 * (73_728 + 32_768 + 4 * 34 * 128)
    assert decode["share_of_bound"] == pytest.approx(
        read / 1e6 / (decode["ms_a_step"] / 1e3), rel=0.02
    )
    # At least the matrices count for every token, at most everything does, with attention over
    # whole rows.
    least = 6 * 73_728
    most = 6 * (73_728 + 32_768 + 2 * 2 * 64 * 128)
    per_token = train["mfu"] * 1e9 / train["tokens_per_s"]
    assert least < per_token < most


@pytest.mark.slow
def test_half_a_pair_of_ceilings_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path / "gpu.json", "--peak-tflops", "100")
    assert done.returncode == 2
    assert "give both --peak-tflops and --bandwidth-gb" in done.stderr
