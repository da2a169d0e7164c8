"""The hashes that `launch/install.sh --require-hashes` compares with."""

import pathlib
import re
import subprocess

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parents[2]
HASHES = ROOT / "launch/hashes"
PLATFORMS = ("cpu", "gpu", "tpu")
SHA256 = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def read_pins(path: pathlib.Path) -> dict[str, str]:
    """Name -> `==` version of every requirement; comments and hashes left out."""
    pins = {}
    for line in path.read_text().replace("\\\n", " ").splitlines():
        requirement = Requirement(line.partition("#")[0].partition("--hash")[0] or "empty")
        if requirement.name != "empty":
            pins[canonicalize_name(requirement.name)] = str(requirement.specifier)
    return pins


@pytest.mark.parametrize("platform", PLATFORMS)
def test_hashes_are_of_the_versions_that_the_tests_run_with(platform: str) -> None:
    wanted_pins = read_pins(ROOT / "requirements.txt")
    pins = read_pins(HASHES / f"{platform}.txt")
    assert {name: pins.get(name) for name in wanted_pins} == wanted_pins, "run: make hashes"
    assert all(re.fullmatch(r"==[^,]+", version) for version in pins.values())


def test_the_engine_of_alfworld_has_the_version_of_the_script() -> None:
    version = read_pins(HASHES / "project.txt")["alfworld"]
    assert f"alfworld{version}" in (ROOT / "launch/install.sh").read_text()


@pytest.mark.parametrize("name", [*PLATFORMS, "project"])
def test_every_package_has_hashes_and_no_file_names_an_index(name: str) -> None:
    text = (HASHES / f"{name}.txt").read_text()
    for line in text.replace("\\\n", " ").splitlines():
        requirement, *hashes = line.split("--hash")
        assert hashes, requirement
        assert len(SHA256.findall(line)) == len(hashes), requirement
    assert not re.search("://|index|find-links", text)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_nothing_is_fetched_without_a_hash(platform: str) -> None:
    script = [str(ROOT / "launch/install.sh"), "--platform", platform, "--python", "python"]
    *fetching, project = subprocess.run(
        ["bash", *script, "--require-hashes", "--dry-run"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert [line.split()[-1] for line in fetching] == [
        str(HASHES / f"{platform}.txt"),
        str(HASHES / "project.txt"),
    ]
    assert all("--require-hashes" in line for line in fetching)
    # The project itself: neither its packages nor packages of an isolated build are fetched.
    assert {"--no-deps", "--no-build-isolation"} <= {*project.split()}
