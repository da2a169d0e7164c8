"""Files and folders that appear whole or not at all: a reader never sees a part; JSON files, read and checked."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gigpo_jax.errors import InputError, writing


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path for the block to write; it then replaces `path`, or is removed if the block raises."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(path: Path, *, full: bool = False) -> Iterator[Path]:
    """A temporary folder for the block to fill; it is then renamed to `path`, or removed if the block raises.

    Args:
      full: a folder with files may be there. It is replaced; processes that opened its files keep them.

    Raises:
      OSError: the folder cannot be made; or files are there and `full` is not given.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    new = holder / "new"
    try:
        new.mkdir()
        yield new
        if full and path.exists():
            path.rename(holder / "old")
        new.rename(path)
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def read_object(path: Path, fix: str = "download the complete folder again") -> dict[str, Any]:
    """Reads a file that holds one JSON object; `fix` is what the user can do about a broken file.

    Raises:
      InputError: the file is missing, cannot be read, is not valid JSON, or holds something else than an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise InputError(f"{path}: missing; {fix}") from err
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror}); {fix}") from err
    except (ValueError, RecursionError) as err:
        raise InputError(f"{path}: not valid JSON ({err!s:.200}); {fix}") from err
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}, not a JSON object; {fix}")
    return content


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file and makes its folder.

    Raises:
      StorageError: it cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
