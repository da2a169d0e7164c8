"""Folders that appear whole or not at all, and that one process writes while others wait."""

import contextlib
import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gigpo_jax.core.errors import InputError


@contextlib.contextmanager
def replace_folder(path: Path, *, full: bool = False) -> Iterator[Path]:
    """Yields a temporary folder for the block to fill, which is then renamed to `path`.

    It is removed if the block raises.

    Args:
      full: Permission to replace a folder with files. Processes that opened its files keep them.

    Raises:
      OSError: The folder cannot be made; or it has files and `full` is not given.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the folder of `path`, because a rename cannot cross file systems. The random name keeps two
    # processes that write the same folder apart.
    holder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    new_folder = holder / "new"
    try:
        # Not the holder itself: mkdtemp makes it readable for this user only, and the renamed
        # folder would stay so.
        new_folder.mkdir()
        yield new_folder
        if full and path.exists():
            # No system call swaps two folders: the old one moves aside and goes with the holder.
            path.rename(holder / "old")
        # Without `full` the system refuses to replace a folder that has files.
        new_folder.rename(path)
    finally:
        # Errors are ignored: `path` is complete here, or the block's error is the one to report.
        shutil.rmtree(holder, ignore_errors=True)


@contextlib.contextmanager
def lock_folder(folder: Path, *, timeout_s: float = 3600.0) -> Iterator[None]:
    """Holds the lock of a folder that is generated, for which other processes wait.

    Raises:
      InputError: Another process holds the lock for more than `timeout_s` seconds.
    """
    # The lock is a file in the parent, because the folder itself appears by a rename at the end.
    path = folder.parent / f".{folder.name}.lock"
    # The file stays. Removing it would let two processes lock two files of the same name.
    with open(path, "w") as file:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                # Polled, because a blocking flock has no time limit. The system releases the lock
                # when the process ends, also if it is killed.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InputError(
                        f"another process has held it for {timeout_s:g} s", key=path, fix="end it"
                    ) from None
                time.sleep(0.05)
        yield
