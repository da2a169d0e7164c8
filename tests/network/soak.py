"""A long run of two learners and two engine servers: `python -m tests.network.soak MINUTES FLAG...`.

Prints iterations, programs compiled so far, and descriptors, threads and MB of each process, every
60th of the time; at the end their slopes, an hour, in the second half. Needs root, and FLAGs of a
model, such as --config.model.path=DIR.
"""

import dataclasses
import json
import pathlib
import sys
import tempfile
import threading
import time

import numpy as np

from tests.network.hosts import Network
from tests.network.programs import Usage, start_engine, start_learners

NAMES = ("learner0", "learner1", "engines")
PORTS = (8000, 8001)
ROUNDS = 60


def soak(minutes: float, flags: list[str], folder: pathlib.Path) -> None:
    """Trains for this time, and ends the processes."""
    flags = [*flags, "--config.train.iterations=100000", "--config.eval.panel="]
    with Network(folder, NAMES) as network:
        engines = [
            start_engine(network, "engines", port, folder / str(port), *flags) for port in PORTS
        ]
        urls = ",".join(f"http://{network.addresses['engines']}:{port}" for port in PORTS)
        remote = ("--config.engine.name=jax_server", f"--config.engine.urls={urls}")
        learners = start_learners(network, NAMES[:2], folder / "run", *flags, *remote)
        processes = (*learners, *engines)
        for process in processes:
            # A full pipe would stop its process.
            threading.Thread(target=process.communicate, daemon=True).start()
        rounds = []
        for _ in range(ROUNDS):
            time.sleep(60 * minutes / ROUNDS)
            assert all(process.poll() is None for process in processes)
            usage = [dataclasses.astuple(Usage.of(process)) for process in processes]
            columns = ["{} {} {:.0f}".format(*values) for values in usage]
            print(*progress(folder / "run" / "metrics.jsonl"), *columns, sep="\t", flush=True)
            rounds.append(usage)
    latter = np.array(rounds[ROUNDS // 2 :])  # [rounds, processes, 3]
    hours = np.arange(len(latter)) * minutes / ROUNDS / 60
    slopes = np.polyfit(hours, latter.reshape(len(latter), -1), 1)[0].reshape(latter.shape[1:])
    print("an hour", "", *("{:+.1f} {:+.1f} {:+.1f}".format(*row) for row in slopes), sep="\t")


def progress(metrics: pathlib.Path) -> tuple[int, int]:
    """Returns iterations, and programs that host 0 compiled."""
    lines = metrics.read_text().splitlines()[1:] if metrics.exists() else []
    # The last line may not be whole yet.
    return len(lines), json.loads(lines[-2])["compile/count"] if len(lines) > 1 else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        soak(float(sys.argv[1]), sys.argv[2:], pathlib.Path(name))
