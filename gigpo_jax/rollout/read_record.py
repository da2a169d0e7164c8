"""Reading a file of saved rollouts."""

import base64
import gzip
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.png import png_size
from gigpo_jax.rollout.record import (
    FORMAT,
    SHARED_TEXTS,
    Rollouts,
    SavedEpisode,
    SavedStep,
    list_tokens,
)
from gigpo_jax.trajectory import FORKS

# Version 1 has no answers, version 2 no environments and no pictures, version 3 no pasts, version 4
# no summaries, version 5 no versions of tokens, version 6 no sources of pasts. Up to version 7 the
# only note is the field `reflection`.
READABLE_VERSIONS = (1, 2, 3, 4, 5, 6, 7, 8)
# Errors of a damaged file: of its compression, then of its content.
_FILE_ERRORS = (OSError, EOFError, zlib.error, StopIteration, RecursionError)
_CONTENT_ERRORS = (ValueError, LookupError, TypeError, AttributeError)


def read_rollouts(path: Path) -> Rollouts:
    """Reads a file.

    Raises:
      InputError: the file is missing, damaged, or of another format.
    """
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            lines = (json.loads(line) for line in file)
            header = next(lines)
            file_format = (header.get("format"), header.get("version"))
            if file_format not in [(FORMAT, version) for version in READABLE_VERSIONS]:
                raise InputError(
                    f"format and version are {file_format}, need {FORMAT!r} of version "
                    f"{READABLE_VERSIONS}",
                    key=path,
                    fix="save it again",
                )
            pictures = [_parse_picture(text) for text in header.get("pictures", ())]
            episodes = tuple(_parse_episode(line, header["texts"], pictures) for line in lines)
        # A file without its last lines would be valid otherwise.
        if len(episodes) != header["episodes"]:
            raise InputError(
                f"has {len(episodes)} of {header['episodes']} episodes",
                key=path,
                fix="save it again",
            )
        # Keys of JSON objects are texts.
        pieces = {int(token): piece for token, piece in header["pieces"].items()}
        if list_tokens(episodes) - pieces.keys():
            raise ValueError("a token has no text")
        return Rollouts(header["iteration"], header["temperature"], episodes, pieces)
    except (*_FILE_ERRORS, *_CONTENT_ERRORS) as err:
        raise InputError(
            f"not a file of saved rollouts ({type(err).__name__}: {err})", key=path
        ) from err


def _parse_picture(text: str) -> bytes:
    data = base64.b64decode(text, validate=True)
    png_size(data)  # raises ValueError if it is no PNG file
    return data


def _parse_episode(
    line: dict[str, Any], texts: Sequence[str], pictures: Sequence[bytes]
) -> SavedEpisode:
    steps = []
    for step in line["steps"]:
        fields: dict[str, Any] = {}
        for name, value in step.items():
            if name in SHARED_TEXTS:
                value = texts[value]
            elif name == "pictures":
                value = [pictures[number] for number in value]
            # JSON has no tuples, and the fields of frozen classes have no lists.
            fields[name] = tuple(value) if isinstance(value, list) else value
        steps.append(SavedStep(**fields))
    # A field that does not exist raises TypeError: the file is then called damaged.
    past = tuple(line.get("past", ()))
    # Older files do not tell; forks are the most common.
    source = line.get("source", FORKS if past else "")
    old_note = line.pop("reflection", "")
    notes = {"reflection": old_note} if old_note else line.get("notes", {})
    values = {"steps": tuple(steps), "past": past, "source": source, "notes": notes}
    return SavedEpisode(**line | values)
