"""Paths as users write them."""

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
