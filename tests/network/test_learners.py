"""Two learners of one run, of which one is cut off or killed."""

import time
from pathlib import Path

import pytest

from gigpo_jax.run.host_beats import SILENT_S
from gigpo_jax.run.host_votes import LAST_S, STOP_LIMIT_S
from tests.metrics import records
from tests.network.hosts import Network
from tests.network.programs import end, start_learners
from tests.runs import wait_for_iteration

NAMES = ("learner0", "learner1")
OWN_FLAGS = (
    "--config.train.iterations=4",
    "--config.train.minibatch=64",
    "--config.batch.rows=64",
    "--config.eval.panel=",
    "--config.checkpoint.every=1",
)
MARGIN_S = 20  # for threads that wait for a processor


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, flags: list[str]) -> list[dict[str, float]]:
    """Metrics of the run without a fault."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with Network(folder, NAMES) as network:
        train_to_end(network, folder / "run", *flags)
    return records(folder / "run")


def train_to_end(network: Network, workdir: Path, *flags: str) -> str:
    """Trains; returns the output of the first host."""
    ended = end(start_learners(network, NAMES, workdir, *flags, *OWN_FLAGS))
    assert [status for status, _, _ in ended] == [0, 0], ended
    return ended[0][1]


def test_learners_that_are_apart_for_ten_seconds_go_on(
    tmp_path: Path, flags: list[str], expected: list[dict[str, float]]
) -> None:
    workdir = tmp_path / "run"
    with Network(tmp_path, NAMES) as network:
        learners = start_learners(network, NAMES, workdir, *flags, *OWN_FLAGS)
        wait_for_iteration(learners[0], workdir, 2)
        network.cut("learner1")
        time.sleep(10)
        network.join("learner1")
        ended = end(learners)
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert records(workdir) == expected


def test_learners_that_are_apart_for_good_end_with_a_line_and_continue(
    tmp_path: Path, flags: list[str], expected: list[dict[str, float]]
) -> None:
    workdir = tmp_path / "run"
    with Network(tmp_path, NAMES) as network:
        learners = start_learners(network, NAMES, workdir, *flags, *OWN_FLAGS)
        wait_for_iteration(learners[0], workdir, 2)
        network.cut("learner1")
        cut_at = time.monotonic()
        ended = end(learners)
        assert time.monotonic() - cut_at < SILENT_S + LAST_S + MARGIN_S
        for host, (status, out, err) in enumerate(ended):
            assert status == 1, ended
            (line,) = [line for line in out.splitlines() if "stopped" in line]
            assert line.startswith(f"host {host} stopped: no sign of life from host {1 - host}; ")
            assert "stack trace" not in err, err
            assert "Traceback" not in err, err
        network.join("learner1")
        assert "continuing after iteration" in train_to_end(network, workdir, *flags)
    assert records(workdir) == expected


@pytest.mark.parametrize("host", [0, 1])
def test_the_other_learner_of_one_that_is_killed_ends_and_they_continue(
    host: int, tmp_path: Path, flags: list[str], expected: list[dict[str, float]]
) -> None:
    workdir = tmp_path / "run"
    with Network(tmp_path, NAMES) as network:
        learners = start_learners(network, NAMES, workdir, *flags, *OWN_FLAGS)
        wait_for_iteration(learners[0], workdir, 2)
        learners[host].kill()
        killed_at = time.monotonic()
        status, out, err = end(learners)[1 - host]
        assert time.monotonic() - killed_at < max(STOP_LIMIT_S, SILENT_S) + LAST_S + MARGIN_S
        # The store ends with the first host, and jax then aborts the others.
        assert status == (1 if host else -6), (out, err)
        if host:
            (line,) = [line for line in out.splitlines() if "stopped" in line]
            assert line.startswith("host 0 stopped: no sign of life from host 1; ")
            assert "Traceback" not in err, err
        assert "continuing after iteration" in train_to_end(network, workdir, *flags)
    assert records(workdir) == expected
