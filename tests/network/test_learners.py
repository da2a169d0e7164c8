"""Two learners of one run, of which one is cut off or killed."""

import math
import subprocess
import time
from pathlib import Path

import pytest

from gigpo_jax.run.host_beats import SILENT_S
from gigpo_jax.run.host_votes import LAST_S
from tests.metrics import records
from tests.network.hosts import Network
from tests.network.programs import Process, end, start_learners
from tests.runs import wait_for_iteration
from tests.small_disk import SmallDisk
from tests.test_clock import moved_clock

NAMES = ("learner0", "learner1")
OWN_FLAGS = (
    "--config.train.iterations=4",
    "--config.train.minibatch=64",
    "--config.batch.rows=64",
    "--config.eval.panel=",
    "--config.checkpoint.every=1",
)
MARGIN_S = 20  # for threads that wait for a processor
DISK_KIB = 150  # less than a run needs


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


def start_and_cut(network: Network, workdir: Path, *flags: str) -> list[Process]:
    """Starts the learners, and cuts the second one off in the third iteration."""
    learners = start_learners(network, NAMES, workdir, *flags, *OWN_FLAGS)
    wait_for_iteration(learners[0], workdir, 2)
    network.cut("learner1")
    return learners


def check_end(ended: tuple[int, str, str], host: int, lost_host: int) -> None:
    """A host names the one that it lost, once, and nothing has a stack trace."""
    status, out, err = ended
    assert status == 1, ended
    (line,) = [line for line in out.splitlines() if "stopped" in line]
    assert line.startswith(f"host {host} stopped: no sign of life from host {lost_host}; ")
    assert "stack trace" not in err, err
    assert "terminate" not in err, err
    assert "Traceback" not in err, err


def test_learners_that_are_apart_for_45_seconds_go_on(
    tmp_path: Path, flags: list[str], expected: list[dict[str, float]]
) -> None:
    workdir = tmp_path / "run"
    with Network(tmp_path, NAMES) as network:
        learners = start_and_cut(network, workdir, *flags)
        time.sleep(45)
        network.join("learner1")
        ended = end(learners)
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert records(workdir) == expected


@pytest.mark.parametrize("apart_s", [65, math.inf], ids=["65 s", "for good"])
def test_learners_that_are_apart_for_longer_end_with_a_line_and_continue(
    apart_s: float, tmp_path: Path, flags: list[str], expected: list[dict[str, float]]
) -> None:
    workdir = tmp_path / "run"
    with Network(tmp_path, NAMES) as network:
        learners = start_and_cut(network, workdir, *flags)
        cut_at = time.monotonic()
        if apart_s < math.inf:
            time.sleep(apart_s)
            network.join("learner1")
        ended = end(learners)
        assert time.monotonic() - cut_at < SILENT_S + LAST_S + MARGIN_S
        for host in range(2):
            check_end(ended[host], host, 1 - host)
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
        ended = end(learners)[1 - host]
        # The store ends with the first host, which the others notice at once.
        limit_s = SILENT_S + LAST_S if host else 0
        assert time.monotonic() - killed_at < limit_s + MARGIN_S
        check_end(ended, 1 - host, host)
        assert "continuing after iteration" in train_to_end(network, workdir, *flags)
    assert records(workdir) == expected


def test_a_full_disk_ends_all_learners_and_they_continue_with_more_space(
    tmp_path: Path, flags: list[str], expected: list[dict[str, float]], small_disk: SmallDisk
) -> None:
    disk = small_disk(DISK_KIB)
    workdir = disk / "run"
    with Network(tmp_path, NAMES) as network:
        ended = end(start_learners(network, NAMES, workdir, *flags, *OWN_FLAGS))
        assert [status for status, _, _ in ended] == [1, 1], ended
        for _, _, err in ended:
            assert "Traceback" not in err, err
        lines = "".join(out + err for _, out, err in ended)
        assert "No space left on device" in lines, lines
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        train_to_end(network, workdir, *flags)
    assert records(workdir) == expected


def test_a_learner_whose_clock_is_an_hour_ahead_has_equal_metrics(
    tmp_path: Path, flags: list[str], expected: list[dict[str, float]]
) -> None:
    workdir = tmp_path / "run"
    clock = moved_clock(tmp_path, 3600)
    Path(clock["MOVE_FILE"]).touch()
    with Network(tmp_path, NAMES) as network:
        learners = start_learners(
            network, NAMES, workdir, *flags, *OWN_FLAGS, environments={"learner1": clock}
        )
        ended = end(learners)
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert records(workdir) == expected
