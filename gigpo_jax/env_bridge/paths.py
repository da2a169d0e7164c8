"""Paths that users write, and the cache folder."""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from gigpo_jax.core.errors import InputError

_VARIABLE = re.compile(r"\$\{?(\w+)")


def expand_path(key: str, path: str | os.PathLike) -> Path:
    """Replaces ~ and environment variables in a path.

    Raises:
      InputError: A variable is not set; the message begins with the user's `key`.
    """
    name = os.path.expandvars(os.path.expanduser(os.fspath(path)))
    # expandvars leaves unset variables as they are. Without this check a folder named `$DATA` would
    # be made.
    unset_variable = _VARIABLE.search(name)
    if unset_variable:
        raise InputError(
            f"the environment variable {unset_variable[1]} is not set",
            key=key,
            value=os.fspath(path),
        )
    return Path(name)


def cache_folder(name: str) -> Path:
    """Makes the cache folder of one environment, for generated or prepared data.

    It is $GIGPO_JAX_CACHE/name, else $XDG_CACHE_HOME/gigpo_jax/name, else ~/.cache/gigpo_jax/name;
    the folder of "module:NAME" is module.NAME.

    Raises:
      InputError: The folder cannot be made.
    """
    setting = os.environ.get("GIGPO_JAX_CACHE", "")
    if setting:
        root = Path(setting)
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gigpo_jax"
    # Some file systems allow no colon in a name.
    folder = root / name.replace(":", ".")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise InputError(
            f"cannot make the folder {folder} ({err.strerror})",
            key="GIGPO_JAX_CACHE",
            value=repr(setting),
            fix="set it to a folder that you can write to",
        ) from err
    return folder


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
