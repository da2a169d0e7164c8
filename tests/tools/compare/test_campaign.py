"""A campaign of real runs: plays what is missing, compares, and leaves finished runs alone."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gigpo_jax.config.command_line import load_config
from gigpo_jax.env_bridge.freeze import freeze_panel, write_panel
from gigpo_jax.envs import registry
from gigpo_jax.tools.compare.campaign import is_finished, list_runs
from tests.tools.compare.test_runs import write_run


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.slow
def test_a_campaign_plays_what_is_missing_and_compares(tmp_path: Path):
    env = registry.make("example", drawers=2, games=16)
    write_panel(tmp_path / "panel.json", freeze_panel("drawers", "example", env, "test"))
    config = "tests/configs/example.py"
    model = tmp_path / "model"
    out = tmp_path / "campaign"
    warm = call(
        "gigpo_jax.main",
        f"--config={config}",
        "--mode=sft",
        f"--workdir={tmp_path / 'sft'}",
        f"--out={model}",
    )
    assert warm.returncode == 0, warm.stderr
    flags = [f"--config.model.path={model}", f"--config.eval.panel={tmp_path / 'panel.json'}"]
    flags += ["--config.train.iterations=2", "--config.eval.every=1", "--config.rl.kl_coef=0.0"]
    campaign = [
        "gigpo_jax",
        "compare",
        f"--config={config}",
        "--algorithms=grpo,gigpo:rl.preset=paper",
        f"--out={out}",
        *flags,
    ]

    first = call(*campaign)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("\nrun ") + first.stdout.startswith("run ") == 2
    record = json.loads((out / "comparison.json").read_text())
    assert [arm["label"] for arm in record["arms"]] == ["grpo", "gigpo"]
    assert record["iterations"] == [0, 1, 2]
    run = record["arms"][1]["runs"][0]
    assert run["config"]["rl.preset"] == "paper"
    assert len(run["won"][2]) == len(record["panel"]["tasks"])
    last = json.loads(
        (out / "gigpo_rl.preset=paper_seed0" / "metrics.jsonl").read_text().splitlines()[-1]
    )
    assert run["won"][2].count("1") / len(run["won"][2]) == last["val/sampled/success_rate"]
    assert {path.name for path in out.iterdir()} >= {
        "comparison.md",
        "comparison.png",
        "comparison.svg",
    }

    mtimes = {path: os.stat(path).st_mtime_ns for path in out.glob("*_seed0/metrics.jsonl")}
    again = call(*campaign)
    assert again.returncode == 0
    assert "run " not in again.stdout.split("|")[0]
    assert {path: os.stat(path).st_mtime_ns for path in mtimes} == mtimes


@pytest.mark.slow
def test_all_arms_are_checked_before_the_first_run(tmp_path: Path):
    refused = call(
        "gigpo_jax",
        "compare",
        "--config=quickstart",
        "--algorithms=grpo,gigpo:rl.gamma=2,gipgo",
        f"--out={tmp_path / 'out'}",
    )
    assert refused.returncode == 2
    assert refused.stderr.startswith("gigpo_jax compare: config.rl.gamma=2.0: must be")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_signal_ends_the_run_of_a_campaign_too(tmp_path: Path):
    """SIGTERM for the campaign alone, as a scheduler sends it."""
    words = ["--config=quickstart", "--algorithms=grpo,gigpo", f"--out={tmp_path / 'out'}"]
    with subprocess.Popen(
        [sys.executable, "-m", "gigpo_jax", "compare", *words, "--config.eval.tasks=4"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("run 1 of 2")
        # The line is printed before the child starts, so the child may take a moment.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 60
        while not (child := children.read_text().strip()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        assert process.wait(timeout=120) == 143
    assert child
    assert not Path(f"/proc/{child}").exists()
    assert not (tmp_path / "out/gigpo_seed0").exists()


def test_each_seed_has_all_algorithms_in_turn_and_their_own_settings(tmp_path: Path):
    runs = list_runs(
        "tests/configs/example.py",
        ["grpo", "gigpo:rl.gamma=0.5", "examples.rare_actions:RARE_ACTIONS:rl.gamma=0.25"],
        [3, 0],
        tmp_path,
        ["--config.rl.gamma=0.75", "--config.env.workers=3"],
    )
    assert [run.folder.name for run in runs] == [
        f"{name}_seed{seed}"
        for seed in (3, 0)
        for name in (
            "grpo",
            "gigpo_rl.gamma=0.5",
            "examples.rare_actions_RARE_ACTIONS_rl.gamma=0.25",
        )
    ]
    configs = [load_config(run.config, run.words) for run in runs]
    assert [(config.rl.algorithm, config.rl.gamma, config.seed) for config in configs] == [
        (name, gamma, seed)
        for seed in (3, 0)
        for name, gamma in (
            ("grpo", 0.75),
            ("gigpo", 0.5),
            ("examples.rare_actions:RARE_ACTIONS", 0.25),
        )
    ]
    assert {config.env.workers for config in configs} == {3}


def test_a_run_without_its_last_iteration_is_played_on(tmp_path: Path):
    folder = write_run(tmp_path / "run", ["0000", "0001"])
    assert is_finished(folder)
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    for remaining in (lines[:-1], []):
        metrics.write_text("".join(remaining))
        assert not is_finished(folder)
    assert not is_finished(tmp_path / "absent")
