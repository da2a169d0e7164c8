"""Wheels of the distributions in this tree, and empty environments that they are installed in."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The packages that these tests run with.
PACKAGES = Path(sysconfig.get_path("purelib"))
BUILD = "from setuptools.build_meta import build_wheel; import sys; print(build_wheel(sys.argv[1]))"


def run_program(*words: object, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a folder; the modules of this tree are hidden from it."""
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=folder,
        env=environ | variables,
        check=False,
    )


def call(*words: object, folder: Path) -> str:
    """Output of a program that must succeed."""
    done = run_program(*words, folder=folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def copy_sources(folder: Path, *names: str) -> None:
    """Copies files and folders of this tree, without what a build left in them."""
    leftovers = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=leftovers)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def build_wheel(source: Path, folder: Path) -> Path:
    """Builds the wheel of a folder of sources into another folder."""
    return folder / call(sys.executable, "-c", BUILD, folder, folder=source).splitlines()[-1]


@dataclass(frozen=True)
class Environment:
    """A virtual environment, whose programs run in a folder of their own.

    Attributes:
      scripts: Folder of the programs.
      site_packages: Folder of the packages.
      folder: Where programs run; empty at first.
    """

    scripts: Path
    site_packages: Path
    folder: Path

    def install(self, wheel: Path) -> None:
        """Installs a wheel alone."""
        self._pip("install", "--no-deps", "--no-index", wheel)

    def uninstall(self, name: str) -> None:
        self._pip("uninstall", "-y", name)

    def _pip(self, *words: object) -> None:
        pip = [sys.executable, "-m", "pip", "--python", self.scripts / "python"]
        call(*pip, *words, folder=self.folder)

    def link_packages(self, *patterns: str) -> list[Path]:
        """Adds packages that these tests run with, as pip install --no-deps; returns the links."""
        links = []
        for path in (path for pattern in patterns for path in PACKAGES.glob(pattern)):
            link = self.site_packages / path.name
            if not link.exists():
                link.symlink_to(path)
                links.append(link)
        return links

    def call(self, name: str, *words: object) -> str:
        """Output of a program of this environment that must succeed."""
        return call(self.scripts / name, *words, folder=self.folder)

    def call_python(self, code: str) -> str:
        return self.call("python", "-c", code)

    def try_program(
        self, name: str, *words: object, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program of this environment, which may fail."""
        return run_program(self.scripts / name, *words, folder=self.folder, **variables)


def make_environment(folder: Path) -> Environment:
    """Makes an environment without packages."""
    home = folder / "venv"
    venv.create(home, symlinks=True)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = call(home / "bin/python", "-c", code, folder=elsewhere).strip()
    return Environment(home / "bin", Path(site_packages), elsewhere)
