"""Iterations with new weights in flight and without, with one engine server on this machine.

python benchmarks/inflight.py [--config quickstart] [--iterations 8] [--seeds 3] [--config.KEY=VALUE]

Both kinds of run have `train.max_staleness=1` and take turns; each iteration but the first two
counts, which compile. Prints a table, medians and the median ratio of iterations of the same seed
and number, and writes benchmarks/results/inflight.json.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from gigpo_jax.engines.vllm.launch import free_ports

RESULTS = Path(__file__).parent / "results"
ENVIRONMENT = os.environ | {"GIGPO_API_KEY": "benchmark"}
START_S = 300.0
RUN_S = 3600.0
COMPILING = 2  # iterations
SETTINGS = {False: "without", True: "in flight"}


@contextlib.contextmanager
def serve_engine(flags: Sequence[str], folder: Path) -> Iterator[str]:
    """Yields the address of a server, which ends with the block."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "gigpo_jax", "engine", *flags]
    command += [f"--config.serve.port={port}", f"--workdir={folder}"]
    server = subprocess.Popen(command, env=ENVIRONMENT)
    try:
        until = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                break
            if server.poll() is not None or time.monotonic() > until:
                raise SystemExit("the engine server did not start")
            time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def train(flags: Sequence[str], url: str, folder: Path, seed: int, inflight: bool) -> list[dict]:
    """Trains once; the metrics of each iteration."""
    command = [sys.executable, "-m", "gigpo_jax", "train", *flags, f"--workdir={folder}"]
    command += ["--config.engine.name=jax_server", f"--config.engine.urls={url}"]
    command += ["--config.train.max_staleness=1", f"--config.train.inflight={inflight}"]
    command += [f"--config.seed={seed}", "--config.checkpoint.every=1000"]
    subprocess.run(command, check=True, timeout=RUN_S, env=ENVIRONMENT)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    # The first one is of the start.
    return [json.loads(line) for line in lines][1:]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="quickstart")
    parser.add_argument("--iterations", type=int, default=8, help="more than 2")
    parser.add_argument("--seeds", type=int, default=3)
    args, settings = parser.parse_known_args()
    flags = [f"--config={args.config}", "--config.eval.panel=", "--config.train.save_rollouts=0"]
    flags += [f"--config.train.iterations={args.iterations}", *settings]
    runs: dict[bool, list[list[dict]]] = {inflight: [] for inflight in SETTINGS}
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_engine(flags, Path(folder) / "server") as url,
    ):
        for seed in range(args.seeds):
            # The other one begins each time: the machine may be slower later.
            for inflight in sorted(SETTINGS, reverse=seed % 2 == 1):
                place = Path(folder) / f"{seed}_{inflight}"
                runs[inflight].append(train(flags, url, place, seed, inflight))
    seconds = {
        inflight: [record["time/iteration"] for records in kind for record in records[COMPILING:]]
        for inflight, kind in runs.items()
    }
    pairs = zip(seconds[True], seconds[False], strict=True)
    ratio = statistics.median(new / old for new, old in pairs)
    success = {
        inflight: [records[-1]["episode/success_rate"] for records in kind]
        for inflight, kind in runs.items()
    }
    print("| weights | s an iteration, median | success in the last iteration, by seed |")
    print("|---|---|---|")
    for inflight, label in SETTINGS.items():
        rates = ", ".join(f"{rate:.0%}" for rate in success[inflight])
        print(f"| {label} | {statistics.median(seconds[inflight]):.2f} | {rates} |")
    print(f"median ratio {ratio:.2f}")
    record = {
        "config": args.config,
        "flags": settings,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "iterations": args.iterations,
        "seconds": {SETTINGS[inflight]: values for inflight, values in seconds.items()},
        "success": {SETTINGS[inflight]: values for inflight, values in success.items()},
        "median_ratio": ratio,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "inflight.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
