"""Paths that users write, and the cache folder."""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from gigpo_jax.errors import InputError

_VARIABLE = re.compile(r"\$\{?(\w+)")


def filled_in(key: str, path: str | os.PathLike) -> Path:
    """A path with ~ and environment variables filled in; raises InputError with the user's `key` if one is not set."""
    name = os.path.expandvars(os.path.expanduser(os.fspath(path)))
    if unset := _VARIABLE.search(name):
        raise InputError(f"{key}={os.fspath(path)}: the environment variable {unset.group(1)} is not set")
    return Path(name)


def cache_folder(name: str) -> Path:
    """The folder for generated or prepared data of one environment, made if it does not exist.

    It is $GIGPO_JAX_CACHE/name, else $XDG_CACHE_HOME/gigpo_jax/name, else ~/.cache/gigpo_jax/name; the folder of
    "module:NAME" is module.NAME.

    Raises:
      InputError: the folder cannot be made.
    """
    own = os.environ.get("GIGPO_JAX_CACHE")
    root = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gigpo_jax"
    folder = root / name.replace(":", ".")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise InputError(
            f"GIGPO_JAX_CACHE={own or ''!r}: cannot make the folder {folder} ({err.strerror}); "
            "set it to a folder that you can write to"
        ) from err
    return folder


@contextlib.contextmanager
def locked(folder: Path, *, timeout_s: float = 3600.0) -> Iterator[None]:
    """Holds the lock of a folder that is generated, a file in its parent; other processes wait here.

    Raises:
      InputError: another process holds the lock for more than `timeout_s` seconds.
    """
    path = folder.parent / f".{folder.name}.lock"
    with open(path, "w") as file:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InputError(f"{path}: another process has held it for {timeout_s:g} s; end it") from None
                time.sleep(0.05)
        yield
