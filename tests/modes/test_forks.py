"""Training with forks: a resumed run makes the same ones, and learns from their own steps."""

from pathlib import Path

import pytest

from gigpo_jax.rollout.record import read_rollouts
from tests.metrics import CLOCK, records
from tests.runs import run


def saved_episodes(workdir: Path):
    files = sorted((workdir / "rollouts").iterdir())
    return [episode for path in files for episode in read_rollouts(path).episodes]


@pytest.mark.parametrize(
    ("algorithm", "choice"),
    [
        ("graph_values", "uniform"),
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
        "--config.train.forks=2",
        f"--config.train.fork_choice={choice}",
        "--config.train.save_rollouts=1",
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
    assert {episode.member for episode in forks} == {2, 3}
    for episode in forks:
        assert len(episode.past) + len(episode.steps) <= 4
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
