"""What `gigpo new` writes passes the checker and its own tests, and trains."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gigpo_jax.tools.new.command import main

ROOT = Path(__file__).parents[2]


def call(folder: Path, *words: str) -> str:
    """Runs Python in a folder, as a user does who has installed gigpo_jax alone."""
    process = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    return process.stdout


@pytest.mark.slow
def test_a_new_environment_is_checked_tested_and_trained(tmp_path: Path) -> None:
    assert "written: my_game/" in call(tmp_path, "gigpo_jax", "new", "env", "my_game")
    folder = tmp_path / "my_game"
    checked = call(folder, "gigpo_jax", "envs", "check", "my_game.env:ENVIRONMENT")
    assert "holds: 256 tasks with unique ids" in checked
    assert "3 passed" in call(folder, "pytest", "-p", "no:cacheprovider", "tests")
    sizes = ["sft.episodes=64", "train.iterations=1", "train.groups=2", "train.minibatch=16"]
    flags = [f"--config.{size}" for size in (*sizes, "train.group_size=4", "eval.tasks=4")]
    sft = ["--config=configs/sft.py", "--workdir=runs/my_game_sft"]
    call(folder, "gigpo_jax", "sft", *sft, *flags, "--config.sft.minibatch=32")
    train = ["--config=configs/train.py", "--workdir=runs/my_game"]
    call(folder, "gigpo_jax", "train", *train, *flags)
    last = json.loads((folder / "runs/my_game/metrics.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["rollout/episodes"]) == (1, 8)


def test_a_new_algorithm_passes_its_tests_and_is_one_of_a_config(tmp_path: Path) -> None:
    call(tmp_path, "gigpo_jax", "new", "algorithm", "my_rule")
    folder = tmp_path / "my_rule"
    assert "2 passed" in call(folder, "pytest", "-p", "no:cacheprovider", "tests")
    flags = ["--config=quickstart", "--config.rl.algorithm=my_rule:ALGORITHM", "--print_config"]
    assert "rl.settings.power=0.5 " in call(folder, "gigpo_jax", "train", *flags)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my-game", "NAME=my-game: no name of a Python module"),
        ("class", "NAME=class: no name of a Python module"),
        ("json", "NAME=json: a Python module has this name already"),
    ],
)
def test_names_that_python_cannot_import_are_refused(
    name: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["env", name]) == 2
    assert capsys.readouterr().err.startswith(f"gigpo new: {reason}")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["algorithm", "my_rule", f"--out={tmp_path}"]) == 2
    fix = "exists; choose another NAME, or a folder with --out"
    assert capsys.readouterr().err == f"gigpo new: {tmp_path}: {fix}\n"
    assert list(tmp_path.iterdir()) == []
    # In the working directory, where Python would find the folder as a module.
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_game").mkdir()
    assert main(["env", "my_game"]) == 2
    assert capsys.readouterr().err == f"gigpo new: my_game: {fix}\n"
