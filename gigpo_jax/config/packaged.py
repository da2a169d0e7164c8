"""Files that come with the package: the folders configs/ and models/ of the repository; a wheel has them in data/."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
ROOT = _PACKAGE / "data" if (_PACKAGE / "data").is_dir() else _PACKAGE.parent


def located(path: str) -> Path:
    """Where a path of a config is: in the working directory or else, if it exists there, in the package."""
    ours = ROOT / path
    return ours if ours.exists() and not Path(path).exists() else Path(path)
