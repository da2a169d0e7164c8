"""Files and folders that appear whole or not at all, and JSON files.

A reader of a path never sees a part of its new content.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gigpo_jax.core.errors import InputError, storage_errors


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path for the block to write, which then replaces `path`.

    It is removed if the block raises.
    """
    # A neighbour of `path`: a rename is atomic only within a file system.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        # The block has closed the file by now, so a full disk has raised and `path` keeps its
        # content.
        temporary.replace(path)
    finally:
        # After a rename the name is gone already; after an error a torn file must not stay.
        temporary.unlink(missing_ok=True)


def read_object(path: Path, fix: str = "download the complete folder again") -> dict[str, Any]:
    """Reads a file that holds one JSON object.

    Args:
      path: File to read.
      fix: Remedy for a broken file, for the message.

    Raises:
      InputError: The file is missing, cannot be read, or does not hold a JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        # Half of a surrogate pair is no character: no tokenizer and no terminal would take it.
        if "\\ud" in text.lower():
            json.dumps(content, ensure_ascii=False).encode()
    except FileNotFoundError as err:
        raise InputError("missing", key=str(path), fix=fix) from err
    except OSError as err:
        raise InputError(f"cannot be read ({err.strerror})", key=str(path), fix=fix) from err
    # ValueError is bad JSON or bad Unicode; RecursionError is JSON of very many brackets. The text
    # may quote the file, so it is cut.
    except (ValueError, RecursionError) as err:
        raise InputError(f"not valid JSON ({err!s:.200})", key=str(path), fix=fix) from err
    if not isinstance(content, dict):
        reason = f"holds a {type(content).__name__}, not a JSON object"
        raise InputError(reason, key=str(path), fix=fix)
    return content


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file and makes its folder.

    Raises:
      StorageError: The file cannot be written.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as temporary:
            # Sorted keys: the same values are the same bytes, so files of two runs can be compared.
            text = json.dumps(value, indent=2, sort_keys=True) + "\n"
            temporary.write_text(text, encoding="utf-8")


def check_writable(folder: Path, flag: str) -> None:
    """Checks that a file can be made in a folder, or in its nearest parent that exists.

    The check makes a file there and removes it.

    Raises:
      InputError: that fails; the message names the command-line flag.
    """
    for path in (folder, *folder.absolute().parents):
        # `exists` follows links, so the search below would pass over a link to nothing, and mkdir
        # would fail on it.
        if path.is_symlink() and not path.exists():
            raise InputError(
                f"{path} is a link to nothing",
                key=flag,
                value=str(folder),
                fix="mend the link or choose another folder",
            )
    # The folder is not made for this check: it would stay after another check has refused the run.
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        # A random name: hosts share the folder.
        with tempfile.NamedTemporaryFile(prefix=".probe.", dir=nearest):
            pass
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror})",
            key=flag,
            value=folder,
            fix="choose another folder",
        ) from error
