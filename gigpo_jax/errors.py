"""Errors that end the program with one line, and text that is safe to print."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path


class InputError(Exception):
    """A bad config, flag, file or folder; its text is one line with the key, the value and the fix.

    `gigpo_jax.main` and the other commands print that line and exit with `status`, without a traceback.
    """

    status = 2


class StorageError(Exception):
    """A file of a run cannot be written; its text is one line with the path, the reason and the fix.

    `gigpo_jax.main` prints that line and exits with `status`, without a traceback.
    """

    status = 1


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an `OSError` of the block, which writes a file or folder, into a `StorageError`."""
    try:
        yield
    except OSError as err:
        raise StorageError(
            f"{path}: cannot be written ({err.strerror or err}); free space or mend the disk, then run the same command"
        ) from err


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """At most three known names like a misspelt one; else those that end with its last part (of `a.b` that is `b`)."""
    known = list(known)
    last = name.rpartition(".")[2]
    return difflib.get_close_matches(name, known, n=3) or [other for other in known if last and other.endswith(last)]


def printable(text: str) -> str:
    """A text for a terminal: control characters, such as those of ANSI sequences, are escaped; line ends stay."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
