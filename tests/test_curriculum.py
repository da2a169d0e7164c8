"""A run with a curriculum draws the same tasks after it was stopped and resumed."""

import json
from pathlib import Path

import pytest

from gigpo_jax.config import resolve
from gigpo_jax.modes import sft, train
from gigpo_jax.rollout.read_record import read_rollouts
from tests.configs.example import get_config
from tests.metrics import records

pytestmark = pytest.mark.slow


def test_a_curriculum_is_resumed_exactly(tmp_path: Path) -> None:
    def run(name: str, iterations: int) -> Path:
        config = get_config().unlock()
        config.model.path = str(tmp_path / "sft" / "model")
        config.train.curriculum, config.train.iterations, config.train.refill_groups = (
            "success",
            iterations,
            1,
        )
        config.train.save_rollouts = config.checkpoint.every = 1
        assert train.run(resolve(config), tmp_path / name, "") == 0
        return tmp_path / name

    def drawn(workdir: Path) -> list[str]:
        files = sorted((workdir / "rollouts").iterdir())
        return [episode.task for file in files for episode in read_rollouts(file).episodes]

    def rates(workdir: Path, step: int) -> dict[str, float]:
        return json.loads((workdir / f"checkpoints/{step}/record/metadata").read_text())["record"][
            "curriculum"
        ]

    config = get_config().unlock()
    config.sft.episodes, config.sft.epochs = 192, 20
    assert sft.run(resolve(config), tmp_path / "sft", "") == 0
    whole = run("whole", 3)
    stopped = run("stopped", 2)
    run("stopped", 3)
    assert records(stopped) == records(whole)
    assert drawn(stopped) == drawn(whole)
    assert rates(stopped, 3) == rates(whole, 3)
    assert (
        len(set(rates(whole, 2).values())) > 1
    )  # else the third iteration had nothing to remember
