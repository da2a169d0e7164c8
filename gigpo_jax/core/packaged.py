"""Files that come with the package: configs/ and models/ of the repository.

A wheel has them in data/, of models/ only the quickstart's model.
"""

from pathlib import Path

from gigpo_jax import __version__

_PACKAGE = Path(__file__).parents[1]
ROOT = _PACKAGE / "data" if (_PACKAGE / "data").is_dir() else _PACKAGE.parent


def locate_file(path: str) -> Path:
    """Finds the file of a config's path in the working directory, or else in the package."""
    packaged_path = ROOT / path
    if packaged_path.exists() and not Path(path).exists():
        return packaged_path
    return Path(path)


def install_command(extra: str) -> str:
    """Returns the command that installs an extra from the running clone, or else from a wheel.

    No index has the package.
    """
    if (ROOT / "setup.py").is_file():
        return f'pip install -e "{ROOT}[{extra}]"'
    if "gigpo_worlds" in ROOT.parts:
        return f'pip install "gigpo-worlds[{extra}]"'
    return f'pip install "gigpo_jax-{__version__}-py3-none-any.whl[{extra}]"'
