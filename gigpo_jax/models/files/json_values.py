"""Numbers, sizes and flags of a config.json, checked as they are read."""

import pathlib
from collections.abc import Mapping
from typing import Any

from gigpo_jax.core.errors import InputError

# Generous: stops a broken file before arrays of such a size, or so many layers, are tried.
_LARGEST_SIZE = 2**24
_LARGEST_COUNT = 2**14
_LARGEST_LENGTH = 2**30  # some folders write a huge number for no limit
_LENGTHS = ("max_position_embeddings", "sliding_window")
FIX = "use the config.json that belongs to the model"


def check_folder(path: str | pathlib.Path) -> pathlib.Path:
    """Returns the path of a model folder; raises InputError if there is none."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        raise InputError(
            "no such model folder",
            key=folder,
            fix="give the path of a downloaded Hugging Face model",
        )
    return folder


class JsonValues:
    """The values of an object of config.json, where a key of null counts as missing."""

    def __init__(self, content: Mapping[str, Any], file: pathlib.Path) -> None:
        self.file = file
        self._values = {key: value for key, value in content.items() if value is not None}

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value as it is."""
        return self._values.get(key, default)

    def size(self, key: str, default: int | None = None) -> int:
        """Reads a whole number from 1 on."""
        value = self.get(key, default)
        largest = _LARGEST_COUNT if key.startswith("num_") else _LARGEST_SIZE
        if key in _LENGTHS:
            largest = _LARGEST_LENGTH
        # Not `isinstance`, for which `true` is an int.
        if type(value) is not int or not 1 <= value <= largest:
            raise self.error(f"{key}={value!r:.80} must be a whole number from 1 to {largest}")
        return value

    def number(self, key: str, default: float) -> float:
        """Reads a finite number above 0."""
        value = self.get(key, default)
        if type(value) not in (int, float) or not 0 < value < 1e12:
            raise self.error(f"{key}={value!r:.80} must be a finite number above 0")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Reads true or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key}={value!r:.80} must be true or false")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """Reads a list of integers; a missing one is empty."""
        value = self.get(key, [])
        if not isinstance(value, list) or not all(type(number) is int for number in value):
            raise self.error(f"{key}={value!r:.80} must be a list of integers")
        return tuple(value)

    def error(self, reason: str) -> InputError:
        """Makes the error of a value that cannot be right."""
        return InputError(reason, key=self.file, fix=FIX)


def read_token_ids(content: dict[str, Any], key: str, path: pathlib.Path) -> tuple[int, ...]:
    """Reads the token ids under a key of a model's file: one id, a list, null or missing.

    Raises:
      InputError: the value is something else.
    """
    value = content.get(key)
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(type(number) is int and 0 <= number < 2**31 for number in ids):
        raise InputError(
            f"{key}={value!r:.80} must be a token id, a list of token ids or null", key=path
        )
    return tuple(ids)
