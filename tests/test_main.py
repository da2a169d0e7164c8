"""The command line refuses what it does not understand with one line and exit status 2."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = "--config=configs/quickstart.py"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--config: missing"),
        (["--config=configs/absent.py"], "configs/absent.py"),
        ([CONFIG, "--config.train.group=3"], "config.train.group: no such key; nearest: train.groups"),
        ([CONFIG, "--config.train.groups=many"], "--config.train.groups=many"),
        ([CONFIG, "--config.train.groups=-2"], "config.train.groups=-2: must be greater than 0"),
        ([CONFIG, "--mode=tain"], "train|eval|sft|export"),
        ([CONFIG, "--wrokdir=x"], "wrokdir"),
        ([CONFIG, "train"], "'train': not a flag"),
        ([CONFIG, "--config.model.path=/no/such/folder"], "/no/such/folder"),
        ([CONFIG, "--config.env.name=alfwrld"], "alfworld"),
        ([CONFIG, "--config.rl.algorithm=gipgo"], "gigpo"),
        ([CONFIG, "--config.mesh.fsdp=64"], "mesh"),
        ([CONFIG, "--workdir=/proc/nowhere"], "--workdir=/proc/nowhere: cannot be written"),
        ([CONFIG, "--mode=sft", "--out=/proc/nowhere/model"], "--out=/proc/nowhere: cannot be written"),
        ([CONFIG, "--mode=eval", "--workdir=/proc/nowhere"], "--workdir=/proc/nowhere: cannot be written"),
        ([CONFIG, "--mode=export", "--out=configs"], "configs: exists and is not a model"),
    ],
)
def test_bad_input_is_one_line_and_status_2(flags: list[str], message: str, tmp_path: Path):
    command = [sys.executable, "-m", "gigpo_jax.main", f"--workdir={tmp_path}", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.count("\n"), "Traceback" in done.stderr) == (2, 1, False), done.stderr
    assert done.stderr.startswith("gigpo_jax: ")
    assert message in done.stderr
    assert not (tmp_path / "config.json").exists()  # a corrected command may use the same workdir
