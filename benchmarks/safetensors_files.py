"""Our safetensors reader and writer against the safetensors package, on a file of 200 MB.

    python benchmarks/safetensors_files.py [--repeats 5]

Writes benchmarks/results/safetensors_files.json. 40 bfloat16 tensors of 5 MB are made one after the
other and written, read whole, and read in part (an eighth of the columns, as one of eight devices
does); both writers end with the file on the disk. Every measurement is a fresh process. Time is
wall time, memory the largest resident size above that before, medians.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors.numpy

from gigpo_jax.models.files import safetensors_file, safetensors_output

RESULTS = Path(__file__).parent / "results"
SHAPE = (2500, 1000)
NAMES = [f"tensor{number:02}" for number in range(40)]
TASKS = ("write", "read", "read a part")
LIBRARIES = ("gigpo_jax", "safetensors")


def make_tensors() -> Iterator[np.ndarray]:
    """Makes the tensors, one at a time."""
    for number in range(len(NAMES)):
        yield np.full(SHAPE, number, ml_dtypes.bfloat16)


def write_file(library: str, path: Path) -> None:
    """Writes the file and waits until it is on the disk."""
    if library == "gigpo_jax":
        names = [(name, SHAPE) for name in NAMES]
        data = (tensor.reshape(-1).view(np.uint8).data for tensor in make_tensors())
        safetensors_output.write_file(path, names, "BF16", data)
        return
    safetensors.numpy.save_file(dict(zip(NAMES, make_tensors(), strict=True)), path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def read_file(library: str, path: Path, columns: int) -> float:
    """Reads the first columns of all tensors; returns the sum of their corners."""
    total = 0.0
    if library == "gigpo_jax":
        for entry in safetensors_file.read_header(path).values():
            tensor = np.memmap(path, ml_dtypes.bfloat16, "r", entry.start, entry.shape)
            total += float(np.array(tensor[:, :columns])[-1, -1])
        return total
    with safetensors.safe_open(path, framework="numpy") as file:
        for name in NAMES:
            total += float(file.get_slice(name)[:, :columns][-1, -1])
    return total


def measure_process(task: str, library: str, path: Path) -> dict[str, float]:
    """Measures one task in this process."""
    earlier_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    if task == "write":
        write_file(library, path)
    else:
        columns = SHAPE[1] if task == "read" else SHAPE[1] // 8
        assert read_file(library, path, columns) == sum(range(len(NAMES)))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "memory_mb": (peak - earlier_peak) / 1024}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--process", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.process:
        task, library, path = args.process
        print(json.dumps(measure_process(task, library, Path(path))))
        return

    cases = [(task, library) for task in TASKS for library in LIBRARIES]
    runs: dict[tuple[str, str], list[dict[str, float]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/tensors.safetensors"
        for _ in range(args.repeats):
            for task, library in cases:
                command = [sys.executable, __file__, "--process", task, library, path]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                runs[task, library].append(json.loads(output))

    rows = []
    print("| task | library | s | MB |\n|---|---|---|---|")
    for task, library in cases:
        seconds = statistics.median(run["seconds"] for run in runs[task, library])
        memory = statistics.median(run["memory_mb"] for run in runs[task, library])
        rows.append({"task": task, "library": library, "seconds": seconds, "memory_mb": memory})
        print(f"| {task} | {library} | {seconds:.3f} | {memory:.0f} |")
    RESULTS.mkdir(exist_ok=True)
    record = {"repeats": args.repeats, "machine": platform.machine(), "rows": rows}
    (RESULTS / "safetensors_files.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
