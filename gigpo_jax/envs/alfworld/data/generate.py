"""Makes ALFWorld games from the floor plans of the `alfworld` package, without any download.

Game i of a split depends only on the split, the seed, the size, the task types and i, on any machine. A split
appears whole or not at all, with a manifest of its arguments.
"""

import hashlib
import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from gigpo_jax.env_bridge.base import Progress, check_whole, no_progress
from gigpo_jax.env_bridge.paths import filled_in
from gigpo_jax.envs.alfworld.data.draw import RoomSize, draw_room, room_size
from gigpo_jax.envs.alfworld.data.game_folder import GAME_FILE, MANIFEST, TRAJ_FILE
from gigpo_jax.envs.alfworld.data.package import Package, read_package
from gigpo_jax.envs.alfworld.data.room import Room, problem_pddl
from gigpo_jax.envs.alfworld.data.scenes import split_scenes
from gigpo_jax.envs.alfworld.tasks import TASK_TYPES
from gigpo_jax.errors import InputError
from gigpo_jax.files import replacing_folder

VERSION = 1  # raise it whenever the same arguments would give other games


def make_game(package: Package, split: str, index: int, seed: int, size: RoomSize, task_types: Sequence[str]) -> tuple:
    """Game `index` of a split: the room, the task in words and the walkthrough. Task types take turns."""
    task_type = task_types[index % len(task_types)]
    key = f"gigpo_jax alfworld {VERSION}|{split}|{seed}|{size.receptacles}|{size.objects}|{task_type}|{index}"
    rng = random.Random(key)
    room, plan = draw_room(package, split, task_type, size, rng)
    goal, phrases = room.goal, package.phrases[task_type]
    task = phrases[rng.randrange(2) % len(phrases)].format(
        obj=goal.object.lower(), recep=goal.receptacle.lower(), toggle=goal.lamp.lower()
    )
    return room, task, plan


def _files(package: Package, room: Room, task: str, plan: tuple[str, ...], name: str) -> dict[str, str]:
    goal = room.goal
    game = {
        "pddl_domain": package.domain,
        "grammar": package.grammar.replace("UNKNOWN GOAL", task),
        "pddl_problem": problem_pddl(package, room),
        "solvable": True,
        "walkthrough": list(plan),
    }
    traj = {
        "task_id": name,
        "task_type": goal.type,
        "pddl_params": {
            "object_target": goal.object,
            "parent_target": goal.receptacle,
            "toggle_target": goal.lamp,
            "mrecep_target": "",
            "object_sliced": False,
        },
        "scene": {"floor_plan": f"FloorPlan{room.scene}", "scene_num": room.scene},
        "turk_annotations": {"anns": [{"task_desc": task, "high_descs": []}]},
    }
    return {GAME_FILE: json.dumps(game), TRAJ_FILE: json.dumps(traj)}


def _write_games(folder: Path, manifest: Mapping, size: RoomSize, progress: Progress) -> None:
    package = read_package()
    for index in range(manifest["games"]):
        room, task, plan = make_game(package, manifest["split"], index, manifest["seed"], size, manifest["task_types"])
        goal = room.goal
        trial = f"trial_S{manifest['seed']}_{index:06d}"
        task_folder = f"{goal.type}-{goal.object}-None-{goal.receptacle or goal.lamp}-{room.scene}"
        here = folder / task_folder / trial
        here.mkdir(parents=True)
        for file_name, text in _files(package, room, task, plan, trial).items():
            (here / file_name).write_text(text, encoding="utf-8", newline="\n")
        progress(1)
    text = json.dumps({**manifest, "sha256": _content_hash(folder)}, indent=1)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8", newline="\n")


def _content_hash(folder: Path) -> str:
    """SHA-256 over the names and bytes of all games of a split, in the order of their numbers."""
    digest = hashlib.sha256()
    for trial in sorted(folder.glob("*/trial_*"), key=lambda path: path.name):
        for name in (GAME_FILE, TRAJ_FILE):
            content = (trial / name).read_bytes()
            digest.update(f"{trial.parent.name}/{trial.name}/{name}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()


def _manifest(split: str, games: int, seed: int, size: RoomSize, task_types: Sequence[str]) -> dict:
    check_whole("games", games, 1)
    check_whole("seed", seed)
    if isinstance(task_types, str):
        raise InputError(f"task_types={task_types!r}: give a list of task types")
    if unknown := [kind for kind in task_types if kind not in TASK_TYPES]:
        raise InputError(f"task_types={unknown[0]!r}: no such task type; choose among {', '.join(TASK_TYPES)}")
    if not task_types:
        raise InputError(f"task_types=(): give at least one of {', '.join(TASK_TYPES)}")
    split_scenes(read_package(), split)
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


def _already_there(folder: Path, manifest: Mapping) -> bool:
    """Whether a complete split with the same arguments is there; InputError if other or damaged files are."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sha256 = found.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError):
        raise InputError(f"out={folder}: holds files that are not generated games; choose another folder") from None
    other = [key for key in manifest if found.get(key) != manifest[key]]
    if other:
        raise InputError(
            f"out={folder}: holds games made with {other[0]}={found.get(other[0])!r}, not {manifest[other[0]]!r};"
            " choose another folder or delete this one"
        )
    try:
        whole = _content_hash(folder) == sha256
    except OSError:
        whole = False
    if not whole:
        raise InputError(f"out={folder}: a game in it is missing or damaged; delete this folder and run this again")
    return True


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
    """Writes the games of one split to `out/split`, in the layout of the genuine data, unless it already holds them.

    The parameters are the options of the command `alfworld generate`.

    Args:
      out: the data folder; each split is a folder in it.
      split: "train", "valid_seen" or "valid_unseen".
      games: how many.
      seed: of the games.
      size: "small" or "full".
      receptacles: a number or a (least, greatest) pair; default: those of the size.
      objects: likewise; includes the objects of the task and the lamp.
      task_types: the task types, in turn; default: all six.
      progress: called with 1 after every game.

    Raises:
      InputError: the `alfworld` package is missing, an argument is wrong, or the folder holds other files.
    """
    exact = room_size(size, receptacles, objects)
    manifest = _manifest(split, games, seed, exact, TASK_TYPES if task_types is None else task_types)
    if not os.fspath(out):
        raise InputError("out='': name the data folder to write to")
    folder = filled_in("out", out) / split
    _ensure_split(folder, manifest, exact, progress)
    return folder


def _ensure_split(folder: Path, manifest: Mapping, size: RoomSize, progress: Progress) -> None:
    """Writes the games of a split, unless they are there."""
    if _already_there(folder, manifest):
        return
    try:
        with replacing_folder(folder) as draft:
            _write_games(draft, manifest, size, progress)
    except OSError as err:
        if not _already_there(folder, manifest):  # another process was faster
            raise InputError(f"out={folder}: cannot be written ({err.strerror}); choose another folder") from err


def ensure_games(
    cache_root: str | os.PathLike,
    splits: Mapping[str, int],
    seed: int = 0,
    size: str = "full",
    *,
    receptacles: int | tuple[int, int] | None = None,
    objects: int | tuple[int, int] | None = None,
    task_types: Sequence[str] | None = None,
    progress: Progress = no_progress,
) -> Path:
    """Generates the splits of a data folder, or finds those made before; safe to call from several processes at once.

    Args:
      cache_root: the data folder is made in it; its name has a hash of the arguments.
      splits: split -> number of games, such as {"train": 512, "valid_unseen": 128}.
      seed, size, receptacles, objects, task_types, progress: as for `generate_games`.
    """
    if not splits or not isinstance(splits, Mapping):
        raise InputError(
            f'splits={splits!r}: say how many games of which split, such as {{"train": 512, "valid_unseen": 128}}'
        )
    for split, games in splits.items():
        check_whole(f"splits.{split}", games, 1)
    exact = room_size(size, receptacles, objects)
    types = TASK_TYPES if task_types is None else task_types
    plan = [_manifest(split, splits[split], seed, exact, types) for split in sorted(splits)]
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:12]
    data = Path(cache_root) / f"alfworld-{size}-seed{seed}-{digest}"
    for manifest in plan:
        _ensure_split(data / manifest["split"], manifest, exact, progress)
    return data
