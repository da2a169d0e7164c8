"""Paths that users write, and the cache folder."""

import os
import re
from pathlib import Path

from gigpo_jax.errors import InputError

_VARIABLE = re.compile(r"\$\{?(\w+)")


def filled_in(key: str, path: str | os.PathLike) -> Path:
    """A path with ~ and environment variables filled in.

    Args:
      key: what the user calls it, for the message.
      path: not empty.

    Raises:
      InputError: a variable is not set.
    """
    name = os.path.expandvars(os.path.expanduser(os.fspath(path)))
    if unset := _VARIABLE.search(name):
        raise InputError(f"{key}={os.fspath(path)}: the environment variable {unset.group(1)} is not set")
    return Path(name)


def cache_folder(name: str) -> Path:
    """The folder for generated or prepared data of one environment, made if it does not exist.

    It is $GIGPO_JAX_CACHE/name, else $XDG_CACHE_HOME/gigpo_jax/name, else ~/.cache/gigpo_jax/name.

    Args:
      name: the environment.

    Raises:
      InputError: the folder cannot be made.
    """
    own = os.environ.get("GIGPO_JAX_CACHE")
    root = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gigpo_jax"
    folder = root / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise InputError(
            f"GIGPO_JAX_CACHE={own or ''!r}: cannot make the folder {folder} ({err.strerror}); "
            "set it to a folder that you can write to"
        ) from err
    return folder
