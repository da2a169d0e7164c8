"""Lists the games of a data folder, genuine or generated.

A genuine split has thousands of files of 50 kB and more, so no file is parsed: the task type is in
the folder's name, and `solvable` is in the last bytes of the file.
"""

import hashlib
import json
import logging
import os
import re
from collections import Counter
from pathlib import Path

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.paths import expand_path
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.alfworld.tasks import SPLITS, TASK_TYPES

GAME_FILE = "game.tw-pddl"
TRAJ_FILE = "traj_data.json"
VERSION = 1  # raise it whenever the same arguments would give other games
_LOG = logging.getLogger(__name__)
_TAIL_BYTES = 16384  # a walkthrough of 300 commands fits
_SOLVABLE = re.compile(rb'"solvable"\s*:\s*(true|false|null)')


def check_split_name(split: str) -> None:
    """Raises InputError for a split that does not exist."""
    if split not in SPLITS:
        raise InputError(
            "no such split",
            key="split",
            value=repr(split),
            fix=f"choose one of {', '.join(SPLITS)}",
        )


def hash_games(folder: Path) -> str:
    """Hashes names and bytes of a split's games with SHA-256, in the order of their numbers."""
    digest = hashlib.sha256()
    # By the game's number; the folder above begins with the task type.
    for trial in sorted(folder.glob("*/trial_*"), key=lambda path: path.name):
        for name in (GAME_FILE, TRAJ_FILE):
            content = (trial / name).read_bytes()
            # With the length, no bytes can move from one file to the next unnoticed.
            header = f"{trial.parent.name}/{trial.name}/{name}\n{len(content)}\n"
            digest.update(header.encode() + content)
    return digest.hexdigest()


def find_data(data: str | os.PathLike) -> Path:
    """Returns the data folder, with ~ and environment variables in its path expanded.

    Raises:
      InputError: there is no such folder.
    """
    if not isinstance(data, str | os.PathLike) or not os.fspath(data):
        raise InputError("no folder with games", key="data", value=repr(data), fix=_advise("DIR"))
    folder = expand_path("data", data)
    if not folder.is_dir():
        fix = _advise(folder)
        raise InputError("no such folder", key="data", value=str(folder), fix=fix)
    return folder


def _advise(data: str | os.PathLike, split: str = "train") -> str:
    """How to get games; imported for an error alone."""
    from gigpo_jax.envs.alfworld.data.advice import advise_on_games

    return advise_on_games(Path(data), split)


def _read_solvable(path: str) -> bool | None:
    """Reads a game file's key `solvable`; None without one."""
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            tail = file.read().rstrip()
        match = None
        # A quote inside a JSON text has a backslash before it, so this finds keys only.
        start = tail.rfind(b'"solvable"')
        if start > 0 and tail[start - 1 : start] != b"\\":
            match = _SOLVABLE.match(tail, start)
        # An unusual or a cut file is parsed whole, which also finds the damage.
        if match is None or not tail.endswith(b"}"):
            with open(path, encoding="utf-8") as text:
                solvable = json.load(text).get("solvable")
            return solvable if isinstance(solvable, bool) else None
    except OSError as err:
        raise InputError(f"cannot read it ({err.strerror})", key=path) from err
    except (ValueError, AttributeError) as err:
        from gigpo_jax.envs.alfworld.data.advice import advise_on_damage

        fix = advise_on_damage(Path(path))
        raise InputError("not a complete game file", key=path, fix=fix) from err
    return {b"true": True, b"false": False, b"null": None}[match.group(1)]


def _read_task_type(folder: str, name: str) -> str:
    """Reads the task type in the folder's name or in its traj_data.json; "" if there is none."""
    task_type = name.partition("-")[0]
    if task_type in TASK_TYPES:
        return task_type
    try:
        with open(os.path.join(folder, TRAJ_FILE), encoding="utf-8") as file:
            task_type = json.load(file).get("task_type", "")
    except (OSError, ValueError, AttributeError):
        return ""
    return task_type if task_type in TASK_TYPES else ""


def _inspect_folder(folder: str, name: str, files: list[str]) -> tuple[str, str]:
    """Returns the task type of a game's folder and "", or "" and the reason to skip it.

    `name` is the path of the folder in the data folder, `files` are the names of its files.
    """
    # The official loader skips these, too.
    for word in ("movable", "Sliced"):
        if word in name:
            return "", f"{word} in its path: the games do not support that"
    # The path is SPLIT/TASK-OBJECT-..-ROOM/TRIAL.
    task_type = _read_task_type(folder, name.split("/")[1] if "/" in name else name)
    if not task_type:
        return "", "its task type is none of the six"
    if GAME_FILE not in files:
        return "", f"no {GAME_FILE} in it"
    solvable = _read_solvable(os.path.join(folder, GAME_FILE))
    # The official loader wants the mark as well.
    if solvable is None:
        return "", "not marked as solvable"
    if not solvable:
        return "", "marked unsolvable"
    return task_type, ""


def list_games(data: Path, split: str) -> tuple[Task, ...]:
    """Lists a split's tasks by path, and logs why folders are skipped.

    Raises:
      InputError: no such split, no game in it, or a file that cannot be read.
    """
    root = data / split
    if split in ("", ".", "..") or "/" in split or os.sep in split or not root.is_dir():
        from gigpo_jax.envs.alfworld.data.advice import list_folders

        reason = f"no such folder in {data} (it has: {list_folders(data)})"
        raise InputError(reason, key="split", value=repr(split), fix=_advise(data, split))
    tasks: list[Task] = []
    reasons: Counter[str] = Counter()
    for path, folders, files in os.walk(root):
        # In place: os.walk then does not enter these folders, such as a draft of `replace_folder`.
        folders[:] = [name for name in folders if not name.startswith(".")]
        # Folders above the games. One with traj_data.json alone is listed as skipped.
        if GAME_FILE not in files and TRAJ_FILE not in files:
            continue
        name = path[len(os.fspath(data)) :].replace(os.sep, "/").lstrip("/")
        task_type, reason = _inspect_folder(path, name, files)
        if task_type:
            tasks.append(Task(name, task_type, split, f"{name}/{GAME_FILE}"))
        else:
            reasons[reason] += 1

    for reason, count in sorted(reasons.items()):
        _LOG.info("%s: %d folders skipped: %s", root, count, reason)
    if not tasks:
        summary = "; ".join(
            f"{count} skipped: {reason}" for reason, count in sorted(reasons.items())
        )
        raise InputError(
            f"holds no game ({summary or 'it is empty'})", key=root, fix=_advise(data, split)
        )
    # The order of a folder differs between file systems.
    tasks.sort(key=lambda task: task.id)
    return tuple(tasks)
