"""Paths that users write, and the cache folder."""

import os
import re
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
