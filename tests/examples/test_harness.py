"""The agent program of docs/serve.md trains a policy."""

from pathlib import Path

import pytest

from gigpo_jax.envs.command_line import main as envs
from gigpo_jax.main import main
from gigpo_jax.rollout.read_record import read_rollouts
from tests.metrics import records

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "harness"
SMALL = [
    *(
        "train.iterations=2",
        "train.groups=2",
        "train.group_size=4",
        "train.minibatch=32",
        "train.save_rollouts=1",
    ),
    *("engine.slots=8", "engine.prefill_rows=(8,)", "env.workers=1", "checkpoint.every=2"),
]


def test_the_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    panel = str(tmp_path / "panel.json")
    assert (
        envs(["freeze", "agent:PLAYER", "--name", "rooms", "--split", "test", "--out", panel]) == 0
    )
    flags = [
        f"--config.{word}"
        for word in (*SMALL, f"eval.panel={panel}", "eval.tasks=4", "eval.every=0")
    ]
    assert (
        main(
            [
                "--mode=train",
                f"--config={EXAMPLE / 'config.py'}",
                f"--workdir={tmp_path / 'run'}",
                *flags,
            ]
        )
        == 0
    )
    steps = records(tmp_path / "run")
    assert [step["rollout/episodes"] for step in steps[1:]] == [8, 8]
    for step in (steps[0], steps[2]):
        assert step["val/sampled/aborted"] == step["val/greedy/aborted"] == 0
        assert 1 <= step["val/sampled/length"] <= 15
    for number, step in enumerate(steps[1:]):
        assert (
            step["policy/behaviour_mismatch"] < 1e-4
        )  # the learner scores the tokens that were sampled
        assert step["policy/grad_norm"] > 0
        name = f"iteration_{number + 1:06d}.host0.jsonl.gz"
        played = [
            step
            for episode in read_rollouts(tmp_path / "run/rollouts" / name).episodes
            for step in episode.steps
        ]
        assert {step.version for step in played} == {number}  # of the newest weights
        assert len({step.anchor_group for step in played}) < len(played)
