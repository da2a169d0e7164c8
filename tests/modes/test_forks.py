"""Training with forks: a resumed run makes the same ones, and learns from their own steps."""

from pathlib import Path

from gigpo_jax.rollout.record import read_rollouts
from tests.metrics import records
from tests.runs import run


def saved_episodes(workdir: Path):
    files = sorted((workdir / "rollouts").iterdir())
    return [episode for path in files for episode in read_rollouts(path).episodes]


def test_a_resumed_run_makes_the_same_forks(flags: list[str], tmp_path: Path) -> None:
    chosen = [
        *flags,
        "--config.rl.algorithm=graph_values",
        "--config.rl.settings.episode=1.0",
        "--config.train.forks=2",
        "--config.train.fork_choice=uniform",
        "--config.train.save_rollouts=1",
    ]
    whole = tmp_path / "whole"
    resumed = tmp_path / "resumed"
    done = run(whole, "train", *chosen, "--config.train.iterations=3")
    assert done.returncode == 0, done.stderr
    for iterations in (1, 3):
        done = run(resumed, "train", *chosen, f"--config.train.iterations={iterations}")
        assert done.returncode == 0, done.stderr
    episodes = saved_episodes(whole)
    assert episodes == saved_episodes(resumed)
    forks = [episode for episode in episodes if episode.past]
    assert {episode.member for episode in forks} == {2, 3}
    for episode in forks:
        assert len(episode.past) + len(episode.steps) <= 4
    for record, other in zip(records(whole)[1:], records(resumed)[1:], strict=True):
        assert record["policy/loss"] == other["policy/loss"]
        # Rows of the update are the steps that the policy took, replayed ones are not.
        assert record["batch/steps"] <= record["rollout/steps"]
    assert sum(record["rollout/forks"] for record in records(whole)[1:]) == len(forks)
