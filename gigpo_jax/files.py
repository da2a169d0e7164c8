"""Files that appear whole or not at all: a reader sees the old one or the new one, never a part."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gigpo_jax.errors import writing


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path for the block to write; it then replaces `path`, or is removed if the block raises."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file and makes its folder.

    Raises:
      StorageError: it cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
