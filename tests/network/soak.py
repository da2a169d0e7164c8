"""A long run of two learners and two engine servers: `python -m tests.network.soak MINUTES FLAG...`.

Prints iterations, and descriptors, threads and MB of each process, ten times. Needs root, and
FLAGs of a model, such as --config.model.path=DIR.
"""

import pathlib
import sys
import tempfile
import time

from tests.network.hosts import Network
from tests.network.programs import Usage, start_engine, start_learners

NAMES = ("learner0", "learner1", "engines")
PORTS = (8000, 8001)
ROUNDS = 10


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
        metrics = folder / "run" / "metrics.jsonl"
        for _ in range(ROUNDS):
            time.sleep(60 * minutes / ROUNDS)
            iterations = metrics.read_text().count("\n") - 1 if metrics.exists() else 0
            usage = [Usage.of(process) for process in (*learners, *engines)]
            columns = [f"{u.descriptors} {u.threads} {u.megabytes:.0f}" for u in usage]
            print(iterations, *columns, sep="\t", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        soak(float(sys.argv[1]), sys.argv[2:], pathlib.Path(name))
