"""Errors that end the program with one line, and text that is safe to print."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path


class InputError(Exception):
    """A bad config, flag, file or folder, worded as "KEY=VALUE: REASON; FIX".

    `gigpo_jax.main` and the other commands print that line and exit with `status`, without a
    traceback.

    Attributes:
      reason: Description of the problem.
      key: Config key, flag, argument or path as the user knows it; "" if there is none.
      value: Rejected value as the user would write it; "" where the key says enough.
      fix: Remedy; "" where the reason contains it.
    """

    # 2 as for argparse: the command was wrong. StorageError has 1: the command was right, and may
    # be given again as it is.
    status = 2

    def __init__(
        self, reason: str, *, key: str | Path = "", value: object = "", fix: str = ""
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.key = str(key)
        self.value = str(value)
        self.fix = fix

    def __str__(self) -> str:
        setting = f"{self.key}={self.value}" if self.value else self.key
        message = f"{setting}: {self.reason}" if setting else self.reason
        return f"{message}; {self.fix}" if self.fix else message

    def with_key(self, key: str) -> "InputError":
        """Returns the same error under the name by which the user knows its key."""
        return InputError(self.reason, key=key, value=self.value, fix=self.fix)


class StorageError(Exception):
    """A file of a run cannot be written; the text is a line with the path, the reason and the fix.

    `gigpo_jax.main` prints that line and exits with `status`, without a traceback.
    """

    status = 1


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turns an `OSError` of a block that writes `path` into a `StorageError`."""
    try:
        yield
    except OSError as err:
        raise StorageError(
            f"{path}: cannot be written ({err.strerror or err}); {storage_fix(err.errno)}, "
            "then run the same command"
        ) from err


def storage_fix(code: int | None) -> str:
    """Returns the remedy for a failed write by `code`, the operating system's error number."""
    # These say nothing about the disk, although they come from the same `open` calls.
    if code in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files (ulimit -n)"
    return "free space or mend the disk"


def first_line(err: BaseException) -> str:
    """Type and first line of an error, cut."""
    return f"{type(err).__name__}: {str(err).strip().partition(chr(10))[0]:.200}"


def escape_controls(text: str) -> str:
    """Escapes control characters for a terminal, ANSI sequences among them; line ends stay."""
    return "".join(
        # Not `ascii` alone: letters and signs of other languages stay readable.
        char if char.isprintable() or char == "\n" else ascii(char)[1:-1]
        for char in text
    )
