"""Files that come with the package: configs/ and models/ of the repository.

A wheel has them in data/, of models/ only the quickstart's model.
"""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
ROOT = _PACKAGE / "data" if (_PACKAGE / "data").is_dir() else _PACKAGE.parent


def locate_file(path: str) -> Path:
    """Finds the file of a config's path in the working directory, or else in the package."""
    packaged_path = ROOT / path
    if packaged_path.exists() and not Path(path).exists():
        return packaged_path
    return Path(path)
