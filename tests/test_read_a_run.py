"""What one quickstart iteration imports: few enough lines to read, and listed in reading order."""

import json
import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
MOST_LINES = 19_960  # a day of reading
TRAIN = """
import json, os, sys
from gigpo_jax.__main__ import main
status = main()
files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
with open(os.environ["FILES"], "w") as file:
    json.dump([name for name in files if "/gigpo_jax/" in name and name.endswith(".py")], file)
sys.exit(status)
"""


@pytest.fixture(scope="module")
def listing() -> dict:
    return runpy.run_path(str(ROOT / "docs/make_run.py"))


def test_a_run_imports_few_lines(listing: dict) -> None:
    files = listing["run_files"]()
    lines = sum(map(listing["count_lines"], files))
    # Neither a walk that stops early nor a core that grows.
    assert 10_000 < lines <= MOST_LINES, f"{lines} lines in {len(files)} files"


def test_a_run_imports_no_scipy(listing: dict) -> None:
    """Single methods and tools have it."""
    pattern = re.compile(r"^ *(import|from) scipy", re.MULTILINE)
    assert [file.name for file in listing["run_files"]() if pattern.search(file.read_text())] == []


def test_the_page_lists_the_files_of_a_run(listing: dict) -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    assert listing["describe_files"]() in page, "run python docs/make_run.py"


@pytest.mark.slow
def test_one_iteration_imports_these_files_alone(listing: dict, tmp_path: pathlib.Path) -> None:
    """The list comes from the sources; this is what a run has loaded at its end."""
    settings = (
        "train.iterations=1 train.groups=2 train.group_size=2 train.minibatch=4 eval.every=0 "
        "eval.panel= engine.slots=4"
    )
    flags = [f"--config.{setting}" for setting in settings.split()]
    environment = os.environ | {"FILES": str(tmp_path / "files.json")}
    workdir = f"--workdir={tmp_path / 'run'}"
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, "train", "--config=quickstart", workdir, *flags],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    loaded = {pathlib.Path(name) for name in json.loads((tmp_path / "files.json").read_text())}
    assert loaded - {*listing["run_files"]()} == set()
