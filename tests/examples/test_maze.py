"""The package of docs/environments.md: installed from its folder it is checked, warm-started and
trained.
"""

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gigpo_jax.envs.command_line import main as envs
from gigpo_jax.main import main

pytestmark = pytest.mark.slow

MAZE = Path(__file__).parents[2] / "examples" / "maze"
SMALL = [
    "sft.episodes=128",
    "sft.minibatch=32",
    "train.iterations=1",
    "train.groups=2",
    "train.group_size=4",
]


def test_the_package_is_installed_checked_and_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(
        MAZE, tmp_path / "maze", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    )
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
    ]
    done = subprocess.run(
        [*pip, "--target", tmp_path / "site", tmp_path / "maze"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "maze" / "maze")  # what follows has the installed package alone
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path / "maze")
    assert pytest.main(["-q", "-p", "no:cacheprovider", "tests"]) == 0
    assert envs(["check-panel", "maze.env:MAZE", "--name", "small", "--option", "size=3"]) == 0
    flags = [f"--config.{word}" for word in (*SMALL, "train.minibatch=16", "eval.tasks=4")]
    for mode, config, workdir in (("sft", "sft", "maze_sft"), ("train", "train", "maze")):
        assert (
            main(
                [
                    f"--mode={mode}",
                    f"--config=configs/{config}.py",
                    f"--workdir=runs/{workdir}",
                    *flags,
                ]
            )
            == 0
        )
        monkeypatch.delitem(sys.modules, "train", raising=False)  # the config that sft.py imports
    last = json.loads(Path("runs/maze/metrics.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["rollout/episodes"]) == (1, 8)
    assert 0 <= last["val/sampled/success_rate/near"] <= 1
    (saved,) = Path("runs/maze/rollouts").iterdir()
    assert b" came " in gzip.decompress(saved.read_bytes())  # the prompt style of the package
