"""The notebooks run from top to bottom, each in a fresh process and an empty folder, and print what
they show.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gigpo_jax.envs.alfworld.data import package

FOLDER = Path(__file__).parent.parent / "notebooks"
SMALL = "--config.train.iterations=1 --config.train.groups=4 --config.eval.tasks=4 --config.train.save_rollouts=1"


def cells(name: str) -> list[dict]:
    return [
        cell
        for cell in json.loads((FOLDER / name).read_text())["cells"]
        if cell["cell_type"] == "code"
    ]


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.ipynb")))
def test_the_cells_run_and_print_what_the_notebook_shows(name: str, tmp_path: Path) -> None:
    program = "\n".join("".join(cell["source"]) for cell in cells(name))
    environ = {
        **os.environ,
        "NOTEBOOK_FLAGS": SMALL,
        "NOTEBOOK_SIZE": "tiny",
        "MPLBACKEND": "agg",
        "PYTHONPATH": str(FOLDER.parent),
    }
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=1500,
        cwd=tmp_path,
        env=environ,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    outputs = [output for cell in cells(name) for output in cell["outputs"]]
    texts = [output["text"] for output in outputs if output["output_type"] == "stream"]
    if name == "train.ipynb":  # shows a whole run, which takes minutes
        assert "val/sampled/success_rate 0: " in done.stdout
        assert "model.safetensors" in done.stdout
    elif name == "colab.ipynb":  # shows nothing: it is for other devices
        assert outputs == []
        assert "optimizer" in done.stdout
        assert "inspect.html" in done.stdout
    else:
        assert done.stdout == "".join(map("".join, texts))


def test_the_install_cell_for_other_devices_installs_the_floor_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (install,) = [
        "".join(cell["source"]) for cell in cells("colab.ipynb") if "REPOSITORY" in str(cell)
    ]
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: commands.append(command))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)  # nothing is installed
    exec(install, {})
    words = package.INSTALL.split()[2:]  # without "pip install"
    assert [command[-len(words) :] for command in commands][1:] == [words]


def test_notebooks_show_pictures_and_no_path_of_the_machine_that_ran_them() -> None:
    for path in FOLDER.glob("*.ipynb"):
        assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text()), path.name
        assert path.stat().st_size < 300_000
    for name in ("advantages.ipynb", "worlds.ipynb", "train.ipynb"):
        outputs = [output for cell in cells(name) for output in cell["outputs"]]
        assert "display_data" in [output["output_type"] for output in outputs], name
