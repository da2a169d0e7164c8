"""A campaign of real runs: plays what is missing, compares, and leaves finished runs alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

from gigpo_jax.env_bridge.panels import freeze_panel, write_panel
from gigpo_jax.envs import registry


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=600, check=False)


def test_a_campaign_plays_what_is_missing_and_compares(tmp_path: Path):
    env = registry.make("example", drawers=2, games=16)
    write_panel(tmp_path / "panel.json", freeze_panel("drawers", "example", env, "test"))
    config, model, out = "tests/configs/example.py", tmp_path / "model", tmp_path / "campaign"
    warm = call("gigpo_jax.main", f"--config={config}", "--mode=sft", f"--workdir={tmp_path / 'sft'}", f"--out={model}")
    assert warm.returncode == 0, warm.stderr
    flags = [f"--config.model.path={model}", f"--config.eval.panel={tmp_path / 'panel.json'}"]
    flags += ["--config.train.iterations=2", "--config.eval.every=1", "--config.rl.kl_coef=0.0"]
    campaign = [
        "gigpo_jax.compare",
        f"--config={config}",
        "--algorithms=grpo,gigpo:rl.preset=paper",
        f"--out={out}",
        *flags,
    ]

    first = call(*campaign)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("\nrun ") + first.stdout.startswith("run ") == 2
    found = json.loads((out / "comparison.json").read_text())
    assert [arm["label"] for arm in found["arms"]] == ["grpo", "gigpo"]
    assert found["iterations"] == [0, 1, 2]
    run = found["arms"][1]["runs"][0]
    assert run["config"]["rl.preset"] == "paper"
    assert len(run["won"][2]) == len(found["panel"]["tasks"])
    last = json.loads((out / "gigpo_rl.preset=paper_seed0" / "metrics.jsonl").read_text().splitlines()[-1])
    assert run["won"][2].count("1") / len(run["won"][2]) == last["val/sampled/success_rate"]
    assert {path.name for path in out.iterdir()} >= {"comparison.md", "comparison.png", "comparison.svg"}

    before = {path: os.stat(path).st_mtime_ns for path in out.glob("*_seed0/metrics.jsonl")}
    again = call(*campaign)
    assert again.returncode == 0
    assert "run " not in again.stdout.split("|")[0]
    assert {path: os.stat(path).st_mtime_ns for path in before} == before
