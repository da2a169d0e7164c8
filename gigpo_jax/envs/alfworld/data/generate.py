"""Makes ALFWorld games from the floor plans of the `alfworld` package, without any download.

Game i of a split depends only on the split, the seed, the size, the task types and i, on any
machine. A split appears whole or not at all, with a manifest of its arguments.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.base import Progress, check_whole, no_progress
from gigpo_jax.envs.alfworld.data.game_folder import (
    VERSION,
    check_split_name,
    hash_games,
)
from gigpo_jax.envs.alfworld.data.room_size import RoomSize, make_room_size
from gigpo_jax.envs.alfworld.engine.load_game import TABLES_FILE
from gigpo_jax.envs.alfworld.tasks import MANIFEST, TASK_TYPES

_OTHER = "choose another folder"


def make_manifest(
    split: str, games: int, seed: int, size: RoomSize, task_types: Sequence[str] = TASK_TYPES
) -> dict:
    """Checks the arguments of a split; returns its manifest."""
    check_whole("games", games, 1)
    check_whole("seed", seed)
    check_split_name(split)
    return {
        "made_by": "gigpo_jax.envs.alfworld.data.generate",
        "version": VERSION,
        "split": split,
        "games": games,
        "seed": seed,
        "receptacles": list(size.receptacles) if size.receptacles else None,
        "objects": list(size.objects) if size.objects else None,
        "task_types": list(task_types),
    }


def _has_split(folder: Path, manifest: Mapping) -> bool:
    """Tells whether a folder has a manifest's split, complete.

    Raises:
      InputError: the folder has other files, or damaged ones.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        # The manifest first: a folder of genuine games must never be taken for a generated one.
        present = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sha256 = present.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError):
        raise _out_error(folder, "holds files that are not generated games", _OTHER) from None
    for key, value in manifest.items():
        if present.get(key) != value:
            reason = f"holds games made with {key}={present.get(key)!r}, not {value!r}"
            raise _out_error(folder, reason, f"{_OTHER} or delete this one")
    try:
        # All files, not only their number: an edited game would change results in silence.
        complete = hash_games(folder) == sha256
    except OSError:
        complete = False
    if not complete:
        fix = "delete this folder and run this again"
        raise _out_error(folder, "a game in it is missing or damaged", fix)
    return True


def _out_error(folder: Path, reason: str, fix: str) -> InputError:
    return InputError(reason, key="out", value=str(folder), fix=fix)


def ensure_split(folder: Path, manifest: Mapping, size: RoomSize, progress: Progress) -> None:
    """Writes the games of a split, unless they are there."""
    if _has_split(folder, manifest):
        return
    from gigpo_jax.core.folders import replace_folder
    from gigpo_jax.envs.alfworld.data.write_games import write_split

    try:
        with replace_folder(folder) as draft:
            write_split(draft, manifest, size, progress)
    except OSError as err:
        # The rename fails if another process was faster; then its games are there.
        if not _has_split(folder, manifest):
            raise _out_error(folder, f"cannot be written ({err.strerror})", _OTHER) from err


def ensure_games(
    cache_root: str | os.PathLike,
    splits: Mapping[str, int],
    seed: int = 0,
    size: str = "full",
    *,
    receptacles: int | tuple[int, int] | None = None,
    objects: int | tuple[int, int] | None = None,
    progress: Progress = no_progress,
) -> Path:
    """Generates the splits of a data folder, once, even if several processes call it.

    Args:
      cache_root: Parent of the data folder, whose name has a hash of the arguments.
      splits: Split -> number of games, such as {"train": 512, "valid_unseen": 128}.
      seed, size, receptacles, objects, progress: Arguments of `one_split.generate_games`.

    Returns:
      Data folder.
    """
    if not splits or not isinstance(splits, Mapping):
        raise InputError(
            "not a number of games for each split",
            key="splits",
            value=repr(splits),
            fix='give them like {"train": 512, "valid_unseen": 128}',
        )
    for split, games in splits.items():
        check_whole(f"splits.{split}", games, 1)
    room_size = make_room_size(size, receptacles, objects)
    # Checked before anything is written: a wrong split leaves no half data folder.
    manifests = [
        make_manifest(split, splits[split], seed, room_size)
        # Sorted: the order of a config's keys must not name another data folder.
        for split in sorted(splits)
    ]
    # Games without tables, of earlier versions, would be read slowly.
    arguments = json.dumps([TABLES_FILE, manifests], sort_keys=True)
    digest = hashlib.sha256(arguments.encode()).hexdigest()[:12]
    data = Path(cache_root) / f"alfworld-{size}-seed{seed}-{digest}"
    for manifest in manifests:
        ensure_split(data / manifest["split"], manifest, room_size, progress)
    return data
