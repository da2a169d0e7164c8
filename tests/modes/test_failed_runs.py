"""Runs that end early: a wrong start, a panel that was touched, an environment that fails."""

import json
from pathlib import Path

import pytest

from gigpo_jax.env_bridge.freeze import freeze_panel, write_panel
from gigpo_jax.envs import registry
from tests.runs import run


def test_a_start_that_failed_leaves_the_workdir_to_a_corrected_one(
    flags: list[str], tmp_path: Path
):
    failed = run(tmp_path, "train", "--config.model.path=/no/such/folder", "--config.optim.lr=0.5")
    assert failed.returncode == 2, failed.stderr
    done = run(tmp_path, "train", flags[0], "--config.train.iterations=1", "--config.eval.every=0")
    assert done.returncode == 0, done.stderr


def test_a_panel_that_was_touched_is_refused(flags: list[str], tmp_path: Path):
    panel = json.loads(Path(flags[1].split("=")[1]).read_text())
    panel["tasks"] = panel["tasks"][:-1]
    (tmp_path / "panel.json").write_text(json.dumps(panel))
    done = run(
        tmp_path / "run", "train", flags[0], f"--config.eval.panel={tmp_path / 'panel.json'}"
    )
    assert done.returncode == 2, done.stderr
    assert "panel.json" in done.stderr


@pytest.mark.slow
def test_an_environment_that_fails_too_often_ends_every_mode_with_its_reason_alone(
    flags: list[str], tmp_path: Path
):
    down = "tests.env_bridge.failing:DOWN"
    reason = "the service is down"
    env = registry.make(down, drawers=2, games=16)
    write_panel(tmp_path / "down.json", freeze_panel("down", down, env, "test"))
    for mode, panel in (("train", ""), ("eval", tmp_path / "down.json"), ("sft", "")):
        initial = ["--initial"] if mode == "eval" else []
        done = run(
            tmp_path / mode,
            mode,
            *flags,
            *initial,
            f"--config.env.name={down}",
            f"--config.eval.panel={panel}",
        )
        assert done.returncode == 1, done.stderr
        assert done.stdout.splitlines()[-1].endswith(reason)
        assert (
            "Traceback" not in done.stdout + done.stderr
        )  # nor one of the workers, whose later answers nobody takes
        assert mode == "sft" or "episodes were aborted, too many to continue" in done.stdout
    assert (tmp_path / "train" / "checkpoints" / "0").is_dir()
