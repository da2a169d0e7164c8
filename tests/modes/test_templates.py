"""A model folder with a hostile chat template ends every mode with one line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TINY = Path(__file__).parents[2] / "models" / "sokoban_text_tiny"


@pytest.mark.parametrize("mode", ["train", "eval", "serve"])
def test_a_hostile_template_ends_a_run_with_one_line(mode: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    (folder / "chat_template.jinja").write_text("{% set x = '%1500000000d' % 1 %}")
    command = [sys.executable, "-m", "gigpo_jax", mode, "--config=sokoban_text_tiny"]
    command += [f"--workdir={tmp_path / 'run'}", f"--config.model.path={folder}"]
    command += [] if mode == "train" else ["--initial"]
    environ = os.environ | {"GIGPO_API_KEY": "open sesame"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        f"gigpo_jax: {folder}: the chat template failed (more than 100 MB of memory); "
        "use a model with a correct one (chat_template.jinja or tokenizer_config.json)\n"
    )
    assert not list(tmp_path.glob("run/checkpoints/*"))
