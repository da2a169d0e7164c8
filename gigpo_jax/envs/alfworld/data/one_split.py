"""Writes the games of one split, for the command `gigpo envs alfworld generate`."""

import os
from collections.abc import Sequence
from pathlib import Path

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.base import Progress, no_progress
from gigpo_jax.env_bridge.paths import expand_path
from gigpo_jax.envs.alfworld.data.generate import ensure_split, make_manifest
from gigpo_jax.envs.alfworld.data.room_size import make_room_size
from gigpo_jax.envs.alfworld.tasks import TASK_TYPES


def generate_games(
    out: str | os.PathLike,
    split: str,
    games: int,
    seed: int = 0,
    size: str = "full",
    *,
    receptacles: int | tuple[int, int] | None = None,
    objects: int | tuple[int, int] | None = None,
    task_types: Sequence[str] | None = None,
    progress: Progress = no_progress,
) -> Path:
    """Writes the games of one split in the layout of the genuine data, unless they are there.

    The parameters are the options of the command `alfworld generate`.

    Args:
      out: Data folder; each split is a folder in it.
      split: "train", "valid_seen" or "valid_unseen".
      games: Number of games.
      seed: Seed of the games.
      size: "small" or "full".
      receptacles: Number or (least, greatest) pair; default: as for the size.
      objects: Number or (least, greatest) pair, the task's objects and the lamp included.
      task_types: Task types, in turn; default: all six.
      progress: Function that is called with 1 after every game.

    Returns:
      Folder of the split.

    Raises:
      InputError: the `alfworld` package is missing, an argument is wrong, or the folder holds other
        files.
    """
    room_size = make_room_size(size, receptacles, objects)
    task_types = TASK_TYPES if task_types is None else task_types
    _check_task_types(task_types)
    manifest = make_manifest(split, games, seed, room_size, task_types)
    if not os.fspath(out):
        raise InputError("no data folder", key="out", value="''", fix="name the one to write")
    folder = expand_path("out", out) / split
    ensure_split(folder, manifest, room_size, progress)
    return folder


def _check_task_types(task_types: Sequence[str]) -> None:
    """Raises InputError unless there is a task type and all of them are among the known six."""
    if isinstance(task_types, str) or not task_types:
        raise InputError(
            f"must be a list of one or more of {', '.join(TASK_TYPES)}",
            key="task_types",
            value=repr(task_types),
        )
    for task_type in task_types:
        if task_type not in TASK_TYPES:
            raise InputError(
                "no such task type",
                key="task_types",
                value=repr(task_type),
                fix=f"choose among {', '.join(TASK_TYPES)}",
            )
