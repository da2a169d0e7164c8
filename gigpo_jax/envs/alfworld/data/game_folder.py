"""Lists the games of a data folder, genuine or generated.

A genuine split has thousands of files of 50 kB and more, so no file is parsed: the task type is in the folder's name,
and `solvable` is in the last bytes of the file.
"""

import json
import logging
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gigpo_jax.env_bridge.paths import filled_in
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.alfworld.data.scenes import SPLITS
from gigpo_jax.envs.alfworld.tasks import TASK_TYPES
from gigpo_jax.errors import InputError

GAME_FILE = "game.tw-pddl"
TRAJ_FILE = "traj_data.json"
MANIFEST = "manifest.json"  # of generated games, in the folder of their split
_LOG = logging.getLogger(__name__)
_NAMED = 8  # folders that a message lists
_TAIL = 16384  # bytes; a walkthrough of 300 commands fits
_SOLVABLE = re.compile(rb'"solvable"\s*:\s*(true|false|null)')
_GET = (
    "generate games with: python -m gigpo_jax.envs alfworld generate --out {data} --split {split} --games 1000;"
    " or get the genuine ones with alfworld-download and use data=$ALFWORLD_DATA/json_2.1.1"
)


@dataclass(frozen=True)
class Skipped:
    """A folder of a split that is not a task."""

    path: str  # relative to the data folder
    reason: str  # in words


def data_folder(data: str | os.PathLike) -> Path:
    """The data folder, with ~ and environment variables filled in; InputError if there is none."""
    if not isinstance(data, str | os.PathLike) or not os.fspath(data):
        raise InputError(f"data={data!r}: name the folder with the games; " + _GET.format(data="DIR", split="train"))
    folder = filled_in("data", data)
    if not folder.is_dir():
        raise InputError(f"data={folder}: no such folder; " + _GET.format(data=folder, split="train"))
    return folder


def _how(data: Path, split: str) -> str:
    if data.name in SPLITS and (data / MANIFEST).is_file():
        return f"this is the folder of one split: use data={data.parent}"
    return _GET.format(data=data, split=split if split in SPLITS else "train")


def _solvable(path: str) -> bool | None:
    """The key `solvable` of a game file; None if it has none."""
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            tail = file.read().rstrip()
        # A quote inside a JSON text has a backslash before it, so this finds keys only.
        start = tail.rfind(b'"solvable"')
        found = _SOLVABLE.match(tail, start) if start > 0 and tail[start - 1 : start] != b"\\" else None
        if found is None or not tail.endswith(b"}"):
            with open(path, encoding="utf-8") as text:
                answer = json.load(text).get("solvable")
            return answer if isinstance(answer, bool) else None
    except OSError as err:
        raise InputError(f"{path}: cannot read it ({err.strerror})") from err
    except (ValueError, AttributeError) as err:
        raise InputError(f"{path}: not a complete game file; {_remedy(Path(path))}") from err
    return {b"true": True, b"false": False, b"null": None}[found.group(1)]


def _remedy(path: Path) -> str:
    split = path.parents[2]
    if (split / MANIFEST).is_file():
        return f"delete {split} and generate it again"
    return "delete its folder, or get it again with alfworld-download"


def _task_type(folder: str, name: str) -> str:
    """The task type, from the folder's name or from its traj_data.json; "" if neither has it."""
    if (kind := name.partition("-")[0]) in TASK_TYPES:
        return kind
    try:
        with open(os.path.join(folder, TRAJ_FILE), encoding="utf-8") as file:
            told = json.load(file).get("task_type", "")
    except (OSError, ValueError, AttributeError):
        return ""
    return told if told in TASK_TYPES else ""


def _look_at(folder: str, name: str, files: list[str]) -> tuple[str, str]:
    """The task type of a game's folder, or "" and the reason to skip it; `name` is its path in the data folder."""
    for word in ("movable", "Sliced"):
        if word in name:
            return "", f"{word} in its path: the games do not support that"
    kind = _task_type(folder, name.split("/")[1] if "/" in name else name)
    if not kind:
        return "", "its task type is none of the six"
    if GAME_FILE not in files:
        return "", f"no {GAME_FILE} in it"
    solvable = _solvable(os.path.join(folder, GAME_FILE))
    if solvable is not True:
        return "", "marked unsolvable" if solvable is False else "not marked as solvable"
    return kind, ""


def list_games(data: Path, split: str) -> tuple[tuple[Task, ...], tuple[Skipped, ...]]:
    """The tasks of a split and what was skipped, both sorted by path.

    Raises:
      InputError: no such split, no game in it, or a file that cannot be read.
    """
    root = data / split
    if split in ("", ".", "..") or "/" in split or os.sep in split or not root.is_dir():
        there = sorted(entry.name for entry in data.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        named = ", ".join(there[:_NAMED]) + (f" and {len(there) - _NAMED} more" if len(there) > _NAMED else "")
        raise InputError(f"split={split!r}: no such folder in {data} (it has: {named or 'none'}); {_how(data, split)}")
    tasks, skipped = [], []
    base = os.fspath(data)
    for where, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if GAME_FILE not in files and TRAJ_FILE not in files:
            continue
        name = where[len(base) :].replace(os.sep, "/").lstrip("/")
        kind, reason = _look_at(where, name, files)
        if kind:
            tasks.append(Task(name, kind, split, f"{name}/{GAME_FILE}"))
        else:
            skipped.append(Skipped(name, reason))
    reasons = Counter(entry.reason for entry in skipped)
    for reason, count in sorted(reasons.items()):
        _LOG.info("%s: %d folders skipped: %s", root, count, reason)
    if not tasks:
        why = "; ".join(f"{count} skipped: {reason}" for reason, count in sorted(reasons.items()))
        raise InputError(f"{root}: holds no game ({why or 'it is empty'}); {_how(data, split)}")
    return tuple(sorted(tasks, key=lambda task: task.id)), tuple(sorted(skipped, key=lambda entry: entry.path))
