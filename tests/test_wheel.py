"""The wheel alone, in an environment and a folder of its own, trains the quickstart."""

import re
import shutil
import sys
from pathlib import Path

import pytest

import gigpo_jax
from tests.doc_pages import links
from tests.wheels import (
    PACKAGES,
    ROOT,
    Environment,
    build_wheel,
    copy_sources,
    make_environment,
    run_program,
)


def copied() -> list[str]:
    """The files and folders that launch/Dockerfile copies: what it takes to install the project."""
    lines = (ROOT / "launch/Dockerfile").read_text().splitlines()
    return [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]


def test_the_version_is_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {gigpo_jax.__version__}\n" in citation
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    assert newest.startswith(gigpo_jax.__version__)


@pytest.fixture
def installed(tmp_path: Path) -> Environment:
    """The wheel alone is installed; its dependencies are those that these tests run with."""
    source = tmp_path / "source"
    copy_sources(source, *copied())
    wheel = build_wheel(source, tmp_path)
    shutil.rmtree(source)
    assert wheel.stat().st_size < 5e6
    environment = make_environment(tmp_path)
    environment.install(wheel)
    names = sorted(path.name for path in PACKAGES.iterdir())
    hidden = ("gigpo_jax", "__editable__", "pip")
    environment.link_packages(*(name for name in names if not name.startswith(hidden)))
    return environment


def check_installation(environment: Environment) -> None:
    """The package is the wheel's, its dependencies are all there, and it has its pages."""
    place = environment.call_python("import gigpo_jax; print(gigpo_jax.__file__)")
    assert Path(place.strip()).is_relative_to(environment.site_packages)
    pip = [sys.executable, "-m", "pip", "--python", environment.scripts / "python"]
    problems = run_program(*pip, "check", folder=environment.folder).stdout
    assert not [line for line in problems.splitlines() if line.startswith("gigpo")], problems
    pages = Path(environment.call("gigpo", "--help").rpartition("pages in ")[2].partition(":")[0])
    assert {"guide.md", "evidence.md", "evidence/real_model.md"} <= {
        path.relative_to(pages).as_posix() for path in pages.rglob("*.md")
    }
    check_links(environment.site_packages / "gigpo_jax")


def check_links(package: Path) -> None:
    """Every link of a page leads to a file of the package."""
    found = [
        (page, target)
        for page in package.rglob("*.md")
        for target, _ in links(page.read_text(encoding="utf-8"))
        if target
    ]
    assert [link for link in found if not (link[0].parent / link[1]).is_file()] == []
    # Between pages and methods too, and to drawings.
    expected = {"credit_steps.svg", "../../methods/hgpo/README.md", "../../data/docs/evidence.md"}
    assert expected <= {target for _, target in found}


def check_missing_model(environment: Environment) -> None:
    """Of the models the wheel has the quickstart's alone."""
    refused = environment.try_program(
        "gigpo", "train", "--config=frozenlake_tiny", "--workdir=lakes"
    )
    assert refused.returncode == 2
    assert re.fullmatch(r".*no such folder; make it with .*_tiny_sft\.py .*\n", refused.stderr)


@pytest.mark.slow
def test_the_wheel_installed_elsewhere_trains_evaluates_and_exports(
    installed: Environment,
) -> None:
    check_installation(installed)
    installed.call("gigpo", "new", "env", "my_game")
    shutil.rmtree(installed.folder / "my_game")
    small = ["--config.train.iterations=1", "--config.eval.tasks=4", "--config.train.groups=4"]
    output = installed.call("gigpo", "train", "--config=quickstart", "--workdir=run", *small)
    assert "iteration 1/1" in output
    check_missing_model(installed)
    assert [path.name for path in installed.folder.iterdir()] == ["run"]
    export = next(line for line in output.splitlines() if " export " in line)
    program, *words = export.partition("(")[0].split()
    assert "checkpoint 1 of run is in run/export" in installed.call(program, *words)
