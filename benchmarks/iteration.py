"""One training iteration end to end: where its time goes.

python benchmarks/iteration.py [--config configs/quickstart.py] [--iterations 5]

Runs the training command in a temporary workdir and reads its metrics; medians over the iterations
after the first, which compiles. Prints a table and writes benchmarks/results/iteration.json.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PHASES = ("rollout", "advantage", "update", "weight_sync")


def measure(config: str, iterations: int) -> dict[str, float]:
    """The median of every metric over the iterations after the first."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            f"--config={config}",
            f"--workdir={folder}/run",
            f"--config.train.iterations={iterations}",
        ]
        quiet = [
            "--config.eval.panel=",
            "--config.train.save_rollouts=0",
            "--config.checkpoint.every=1000",
        ]
        subprocess.run(
            [sys.executable, "-m", "gigpo_jax.main", *flags, *quiet], check=True, timeout=3600
        )
        lines = (Path(folder) / "run/metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["step"] > 1]
    everywhere = set.intersection(*(set(record) for record in records)) - {"step"}
    return {
        name: statistics.median(record[name] for record in records) for name in sorted(everywhere)
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/quickstart.py")
    parser.add_argument(
        "--iterations", type=int, default=5, help="2 or more: the first does not count"
    )
    args = parser.parse_args()
    medians = measure(args.config, args.iterations)
    whole = medians["time/iteration"]
    print(f"| phase ({args.config}, {os.cpu_count()} cores) | s | share |\n|---|---|---|")
    for phase in PHASES:
        seconds = medians[f"time/{phase}"]
        print(f"| {phase} | {seconds:.2f} | {seconds / whole:.0%} |")
    print(f"| iteration | {whole:.2f} | |")
    for name in ("generated_tokens_per_s", "env_steps_per_s", "trained_tokens_per_s"):
        print(f"| {name} | {medians[f'throughput/{name}']:.0f} | |")
    RESULTS.mkdir(exist_ok=True)
    record = {
        "config": args.config,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "medians": medians,
    }
    (RESULTS / "iteration.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
