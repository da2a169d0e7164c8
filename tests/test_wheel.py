"""The wheel alone, in an environment and a folder of its own, trains the quickstart."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import gigpo_jax

ROOT = Path(__file__).parent.parent


def copied() -> list[str]:
    """The files and folders that launch/Dockerfile copies: what it takes to install the project."""
    lines = (ROOT / "launch/Dockerfile").read_text().splitlines()
    return [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]


def call(*words: object, cwd: Path) -> str:
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=cwd,
        env=environ,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_the_version_is_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {gigpo_jax.__version__}\n" in citation
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    assert newest.startswith(gigpo_jax.__version__)


@pytest.mark.slow
def test_the_wheel_installed_elsewhere_trains_evaluates_and_exports(tmp_path: Path) -> None:
    """The environment has the wheel alone; its dependencies are those that these tests run with."""
    source = tmp_path / "source"
    elsewhere = tmp_path / "elsewhere"
    source.mkdir()
    elsewhere.mkdir()
    for name in copied():
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    build = (
        "from setuptools.build_meta import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    )
    wheel = tmp_path / call(sys.executable, "-c", build, tmp_path, cwd=source).splitlines()[-1]
    shutil.rmtree(source)
    assert wheel.stat().st_size < 5e6
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv/bin/python"
    own = Path(
        call(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=elsewhere
        ).strip()
    )
    call(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=elsewhere,
    )
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if (
            not path.name.startswith(("gigpo_jax", "__editable__", "pip"))
            and not (own / path.name).exists()
        ):
            (own / path.name).symlink_to(path)
    where = call(python, "-c", "import gigpo_jax; print(gigpo_jax.__file__)", cwd=elsewhere)
    assert Path(where.strip()).is_relative_to(own)
    checked = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not [line for line in checked.stdout.splitlines() if line.startswith("gigpo")], (
        checked.stdout
    )
    pages = call(tmp_path / "venv/bin/gigpo", "--help", cwd=elsewhere).rpartition("pages in ")[2]
    assert (Path(pages.partition(":")[0]) / "guide.md").is_file()
    call(tmp_path / "venv/bin/gigpo", "new", "env", "my_game", cwd=elsewhere)
    shutil.rmtree(elsewhere / "my_game")
    small = ["--config.train.iterations=1", "--config.eval.tasks=4", "--config.train.groups=4"]
    gigpo = tmp_path / "venv/bin/gigpo"
    told = call(gigpo, "train", "--config=quickstart", "--workdir=run", *small, cwd=elsewhere)
    assert "iteration 1/1" in told
    assert [path.name for path in elsewhere.iterdir()] == ["run"]
    # Of the models the wheel has the quickstart's alone.
    refused = subprocess.run(
        [gigpo, "train", "--config=frozenlake_tiny", "--workdir=lakes"],
        capture_output=True,
        text=True,
        cwd=elsewhere,
        check=False,
    )
    assert refused.returncode == 2
    assert re.fullmatch(r".*no such folder; make it with .*_tiny_sft\.py .*\n", refused.stderr)
    assert [path.name for path in elsewhere.iterdir()] == ["run"]
    export = (
        next(line for line in told.splitlines() if " export " in line).partition("(")[0].split()
    )
    assert "checkpoint 1 of run is in run/export" in call(*export, cwd=elsewhere)
