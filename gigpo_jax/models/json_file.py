"""JSON files of models and runs: read and checked where they enter the program."""

import json
import pathlib
from typing import Any

from gigpo_jax.errors import InputError


def read_object(path: pathlib.Path, fix: str = "download the complete folder again") -> dict[str, Any]:
    """Reads a file that holds one JSON object; `fix` is what the user can do about a broken file.

    Raises:
      InputError: the file is missing, cannot be read, is not valid JSON, or holds something else than an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise InputError(f"{path}: missing; {fix}") from err
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror}); {fix}") from err
    except (ValueError, RecursionError) as err:
        raise InputError(f"{path}: not valid JSON ({err!s:.200}); {fix}") from err
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}, not a JSON object; {fix}")
    return content


def token_ids(content: dict[str, Any], key: str, path: pathlib.Path) -> tuple[int, ...]:
    """The token ids under a key of a model's file: one id, a list of ids, null or nothing; else raises InputError."""
    value = content.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(number) is int and 0 <= number < 2**31 for number in ids):
        raise InputError(f"{path}: {key}={value!r:.80} must be a token id, a list of token ids or null")
    return tuple(ids)
