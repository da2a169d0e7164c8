"""Runs of two learners with engine servers on a third host."""

import time
from pathlib import Path

import pytest

from tests.metrics import records
from tests.network.hosts import Network
from tests.network.intrusion import check_strangers
from tests.network.programs import (
    COORDINATOR_PORT,
    LIMIT_S,
    end,
    start_engine,
    start_learners,
)

NAMES = ("learner0", "learner1", "engines", "stranger")
PORTS = (8000, 8001)
# One microbatch an iteration: its computation waits for tens of round trips.
FLAGS = (
    "--config.train.iterations=2",
    "--config.train.minibatch=64",
    "--config.batch.rows=64",
    "--config.eval.panel=",
)


def train(
    network: Network,
    learners: tuple[str, str],
    servers: str,
    workdir: Path,
    *flags: str,
    strangers: bool = False,
) -> None:
    """Trains on two learners and two servers of one host."""
    engines = [
        start_engine(network, servers, port, workdir / f"engine{port}", *flags) for port in PORTS
    ]
    addresses = [f"{network.addresses[servers]}:{port}" for port in PORTS]
    urls = ",".join(f"http://{address}" for address in addresses)
    remote = ("--config.engine.name=jax_server", f"--config.engine.urls={urls}")
    hosts = start_learners(network, learners, workdir, *flags, *remote)
    if strangers:
        coordinator = f"{network.addresses[learners[0]]}:{COORDINATOR_PORT}"
        deadline = time.monotonic() + LIMIT_S
        while not (workdir / "metrics.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        check_strangers(network, "engine", [*engines, hosts[0]], addresses, coordinator)
    ended = end(hosts)
    assert [status for status, _, _ in ended] == [0, 0], ended
    for engine in engines:
        engine.terminate()
    ended = end(engines)
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert not any("Traceback" in err for _, _, err in ended), ended


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, flags: list[str]) -> list[dict[str, float]]:
    """Metrics of the run whose four processes are on one host, on loopback."""
    folder = tmp_path_factory.mktemp("loopback")
    with Network(folder, ("alone",)) as network:
        train(network, ("alone", "alone"), "alone", folder / "run", *flags, *FLAGS)
    return records(folder / "run")


@pytest.mark.parametrize("fault", ["none", "delay and loss", "rate", "strangers"])
def test_metrics_over_a_network_are_those_of_loopback(
    fault: str, tmp_path: Path, flags: list[str], expected: list[dict[str, float]]
) -> None:
    with Network(tmp_path, NAMES) as network:
        for name in ("learner1", "engines") if fault == "delay and loss" else ():
            network.worsen(name, delay_ms=25, loss=0.01)
        for name in NAMES[:3] if fault == "rate" else ():
            network.limit_rate(name, "100mbit")
        train(
            network,
            ("learner0", "learner1"),
            "engines",
            tmp_path / "run",
            *flags,
            *FLAGS,
            strangers=fault == "strangers",
        )
    assert records(tmp_path / "run") == expected
