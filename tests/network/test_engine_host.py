"""A run whose engine servers are on hosts that are cut off."""

import time
from pathlib import Path

import pytest

from tests.metrics import records
from tests.network.hosts import Network
from tests.network.programs import end, start_engine, start_learners
from tests.runs import wait_for_iteration

NAMES = ("learner", "engine0", "engine1")
PORT = 8000
ITERATIONS = 4
OWN_FLAGS = (
    f"--config.train.iterations={ITERATIONS}",
    "--config.train.minibatch=64",
    "--config.batch.rows=64",
    "--config.eval.panel=",
    "--config.checkpoint.every=1",
)
# A silent host is noticed after 60 s; it then has `engine.connect_timeout_s`, and the last call 30.
GONE_LIMIT_S = 60 + 60 + 30 + 30


def remote_flags(network: Network, servers: int) -> list[str]:
    """Flags of a learner that uses the first hosts of engines."""
    urls = ",".join(f"http://{network.addresses[name]}:{PORT}" for name in NAMES[1 : 1 + servers])
    return ["--config.engine.name=jax_server", f"--config.engine.urls={urls}"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, flags: list[str]) -> list[dict[str, float]]:
    """Metrics of the run with one server and no fault."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with Network(folder, NAMES) as network:
        start_engine(network, "engine0", PORT, folder / "engine", *flags, *OWN_FLAGS)
        (learner,) = start_learners(
            network, ["learner"], folder / "run", *flags, *OWN_FLAGS, *remote_flags(network, 1)
        )
        (ended,) = end([learner])
        assert ended[0] == 0, ended
    return records(folder / "run")


@pytest.mark.parametrize("fault", ["30 s", "one of two"])
def test_the_run_goes_on_with_an_engine_host_that_is_cut_off(
    fault: str, tmp_path: Path, flags: list[str], expected: list[dict[str, float]]
) -> None:
    workdir = tmp_path / "run"
    servers = 2 if fault == "one of two" else 1
    with Network(tmp_path, NAMES) as network:
        own_flags = (*flags, *OWN_FLAGS)
        for name in NAMES[1 : 1 + servers]:
            start_engine(network, name, PORT, tmp_path / name, *own_flags)
        remote = remote_flags(network, servers)
        (learner,) = start_learners(network, ["learner"], workdir, *own_flags, *remote)
        wait_for_iteration(learner, workdir, 2)
        network.cut("engine0")
        cut_at = time.monotonic()
        if fault == "30 s":
            time.sleep(30)
            network.join("engine0")
        ((status, out, err),) = end([learner])
    assert status == 0, (out, err)
    assert records(workdir) == expected
    assert time.monotonic() - cut_at < GONE_LIMIT_S
    dropped = [line for line in out.splitlines() if "dropped" in line]
    assert len(dropped) == servers - 1, out
    assert all("dropped, 1 servers left" in line for line in dropped)


def test_the_run_ends_with_the_last_engine_host_and_continues(
    tmp_path: Path, flags: list[str], expected: list[dict[str, float]]
) -> None:
    workdir = tmp_path / "run"
    with Network(tmp_path, NAMES) as network:
        start_engine(network, "engine0", PORT, tmp_path / "engine", *flags, *OWN_FLAGS)
        own_flags = (*flags, *OWN_FLAGS, *remote_flags(network, 1))
        (learner,) = start_learners(network, ["learner"], workdir, *own_flags)
        wait_for_iteration(learner, workdir, 2)
        network.cut("engine0")
        cut_at = time.monotonic()
        ((status, out, err),) = end([learner])
        assert status == 1, (out, err)
        assert time.monotonic() - cut_at < GONE_LIMIT_S
        assert "Traceback" not in err
        (stopped,) = [line for line in out.splitlines() if "stopped in iteration" in line]
        assert f"no server is left: http://{network.addresses['engine0']}:{PORT}" in stopped
        network.join("engine0")
        ((status, out, err),) = end(start_learners(network, ["learner"], workdir, *own_flags))
        assert status == 0, (out, err)
        assert "continuing after iteration" in out
    assert records(workdir) == expected
