"""The agent program of docs/serve.md trains a policy."""

from pathlib import Path

import pytest

from gigpo_jax.main import main
from gigpo_jax.rollout.record import read_rollouts
from tests.metrics import records

EXAMPLE = Path(__file__).parents[2] / "examples" / "harness"
SMALL = [
    *("train.iterations=2", "train.groups=2", "train.group_size=4", "train.minibatch=32", "train.save_rollouts=1"),
    *("engine.slots=8", "engine.prefill_rows=(8,)", "env.workers=1", "checkpoint.every=2"),
]


def test_the_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    flags = [f"--config.{word}" for word in SMALL]
    assert main(["--mode=train", f"--config={EXAMPLE / 'config.py'}", f"--workdir={tmp_path / 'run'}", *flags]) == 0
    steps = records(tmp_path / "run")
    assert [step["rollout/episodes"] for step in steps[1:]] == [8, 8]
    for number, step in enumerate(steps[1:]):
        assert step["policy/behaviour_mismatch"] < 1e-4  # the learner scores the tokens that were sampled
        assert step["policy/grad_norm"] > 0
        name = f"iteration_{number + 1:06d}.host0.jsonl.gz"
        played = [
            step for episode in read_rollouts(tmp_path / "run/rollouts" / name).episodes for step in episode.steps
        ]
        assert {step.version for step in played} == {number}  # of the newest weights
        assert len({step.anchor_group for step in played}) < len(played)
