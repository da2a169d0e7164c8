"""Training with forks: a resumed run makes the same ones, and learns from their own steps."""

from pathlib import Path

import pytest

from gigpo_jax.rollout.read_record import read_rollouts
from tests.metrics import CLOCK, records
from tests.runs import run, run_two_hosts, warm_start

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def flags(shared_folder: Path) -> list[str]:
    """A model that wins some games, and groups large enough to differ behind their first state.

    Where all returns are equal, all forks by uncertainty are whole episodes.
    """
    return [
        *warm_start(shared_folder / "winning", "--config.sft.epochs=40"),
        "--config.env.max_steps=8",
        "--config.train.groups=2",
        "--config.train.group_size=12",
        "--config.train.forks=6",
        "--config.train.save_rollouts=1",
    ]


def saved_episodes(workdir: Path):
    files = sorted((workdir / "rollouts").iterdir())
    return [episode for path in files for episode in read_rollouts(path).episodes]


@pytest.mark.parametrize(
    ("algorithm", "choice"),
    [
        ("graph_values", "uncertainty"),
        pytest.param("carl", "entropy", marks=pytest.mark.long),
        pytest.param("vineppo", "uniform", marks=pytest.mark.long),
    ],
)
def test_a_resumed_run_makes_the_same_forks(
    flags: list[str], tmp_path: Path, algorithm: str, choice: str
) -> None:
    own = ["--config.rl.settings.episode=1.0"] if algorithm == "graph_values" else []
    chosen = [
        *flags,
        *own,
        f"--config.rl.algorithm={algorithm}",
        f"--config.train.fork_choice={choice}",
    ]
    whole = tmp_path / "whole"
    resumed = tmp_path / "resumed"
    done = run(whole, "train", *chosen, "--config.train.iterations=2")
    assert done.returncode == 0, done.stderr
    for iterations in (1, 2):
        done = run(resumed, "train", *chosen, f"--config.train.iterations={iterations}")
        assert done.returncode == 0, done.stderr
    episodes = saved_episodes(whole)
    assert episodes == saved_episodes(resumed)
    forks = [episode for episode in episodes if episode.past]
    assert forks
    for episode in forks:
        assert 6 <= episode.member < 12
        assert len(episode.past) + len(episode.steps) <= 8
    # The run of one iteration ends with an evaluation.
    without = (*CLOCK, "val/")
    assert records(whole, without) == records(resumed, without)
    for record in records(whole)[1:]:
        # Rows of the update are the steps that the policy took, replayed ones are not.
        assert record["batch/steps"] <= record["rollout/steps"]
    learned = sum(record["batch/steps"] for record in records(whole)[1:])
    finished = [episode for episode in episodes if not episode.aborted and not episode.replaced]
    own = [episode for episode in finished if algorithm != "vineppo" or not episode.past]
    # Continuations of vineppo, and steps that carl does not compare, are in no loss.
    if algorithm == "carl":
        assert 0 < learned < sum(len(episode.steps) for episode in finished)
    else:
        assert learned == sum(len(episode.steps) for episode in own)
    assert sum(record["rollout/forks"] for record in records(whole)[1:]) == len(forks)


def test_two_hosts_make_the_forks_of_one(flags: list[str], tmp_path: Path) -> None:
    """Each host forks its own groups."""
    chosen = [
        *flags,
        "--config.rl.algorithm=graph_values",
        "--config.train.iterations=1",
        "--config.eval.panel=",
    ]
    alone = tmp_path / "alone"
    done = run(alone, "train", *chosen)
    assert done.returncode == 0, done.stderr
    together = tmp_path / "together"
    run_two_hosts(together, *chosen, "--config.mesh.fsdp=2")
    expected = saved_episodes(alone)
    found = saved_episodes(together)
    assert sum(bool(episode.past) for episode in found) > 0
    for one, other in zip(expected, found, strict=True):
        assert (one.group, one.member, one.past) == (other.group, other.member, other.past)
        assert [step.tokens for step in one.steps] == [step.tokens for step in other.steps]
        assert [step.advantage for step in one.steps] == pytest.approx(
            [step.advantage for step in other.steps], abs=1e-4
        )
