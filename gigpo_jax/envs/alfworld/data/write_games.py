"""Writes the games of a split."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gigpo_jax.env_bridge.base import Progress
from gigpo_jax.envs.alfworld.data.draw import draw_game
from gigpo_jax.envs.alfworld.data.game_folder import (
    GAME_FILE,
    TRAJ_FILE,
    VERSION,
    hash_games,
)
from gigpo_jax.envs.alfworld.data.package import Package, read_package
from gigpo_jax.envs.alfworld.data.room import FurnishedRoom, make_problem
from gigpo_jax.envs.alfworld.data.room_size import RoomSize
from gigpo_jax.envs.alfworld.engine.game_file import format_tables
from gigpo_jax.envs.alfworld.engine.load_game import TABLES_FILE
from gigpo_jax.envs.alfworld.engine.pddl_game import read_game
from gigpo_jax.envs.alfworld.tasks import MANIFEST


@dataclass(frozen=True)
class _GeneratedGame:
    """A game before it is written.

    Attributes:
      room: Room with the goal.
      task: Task in words.
      walkthrough: Shortest commands that reach the goal.
    """

    room: FurnishedRoom
    task: str
    walkthrough: tuple[str, ...]


def _make_game(package: Package, manifest: Mapping, size: RoomSize, index: int) -> _GeneratedGame:
    """Makes game `index` of a split. Task types take turns."""
    task_types = manifest["task_types"]
    task_type = task_types[index % len(task_types)]
    split = manifest["split"]
    key = (
        f"gigpo_jax alfworld {VERSION}|{split}|{manifest['seed']}|{size.receptacles}|"
        f"{size.objects}|{task_type}|{index}"
    )
    # A text as a seed is hashed with SHA-512: equal in every process, unlike hash(). Each game has
    # a generator of its own, so game i does not depend on the number of games.
    rng = random.Random(key)
    room, walkthrough = draw_game(package, split, task_type, size, rng)
    goal = room.goal
    phrases = package.phrases[task_type]
    phrase = phrases[rng.randrange(2) % len(phrases)]
    task = phrase.format(
        obj=goal.object.lower(), recep=goal.receptacle.lower(), toggle=goal.lamp.lower()
    )
    return _GeneratedGame(room, task, walkthrough)


def _make_files(package: Package, game: _GeneratedGame, trial: str) -> dict[str, str]:
    """Makes the texts of a game by file name, in the layout of the genuine data."""
    room = game.room
    goal = room.goal
    # The keys of genuine games.
    game_file = {
        "pddl_domain": package.domain,
        "grammar": package.grammar.replace("UNKNOWN GOAL", game.task),
        "pddl_problem": make_problem(package, room),
        "solvable": True,
        "walkthrough": list(game.walkthrough),
    }
    # The official engine's expert reads the task from this file.
    trajectory = {
        "task_id": trial,
        "task_type": goal.type,
        "pddl_params": {
            "object_target": goal.object,
            "parent_target": goal.receptacle,
            "toggle_target": goal.lamp,
            "mrecep_target": "",
            "object_sliced": False,
        },
        "scene": {"floor_plan": f"FloorPlan{room.scene}", "scene_num": room.scene},
        "turk_annotations": {"anns": [{"task_desc": game.task, "high_descs": []}]},
    }
    return {GAME_FILE: json.dumps(game_file), TRAJ_FILE: json.dumps(trajectory)}


def write_split(folder: Path, manifest: Mapping, size: RoomSize, progress: Progress) -> None:
    package = read_package()
    for index in range(manifest["games"]):
        game = _make_game(package, manifest, size, index)
        goal = game.room.goal
        target = goal.receptacle or goal.lamp
        task_folder = f"{goal.type}-{goal.object}-None-{target}-{game.room.scene}"
        trial = f"trial_S{manifest['seed']}_{index:06d}"
        game_folder = folder / task_folder / trial
        game_folder.mkdir(parents=True)
        for file_name, text in _make_files(package, game, trial).items():
            # newline: the hash of a split is the same on all systems.
            (game_folder / file_name).write_text(text, encoding="utf-8", newline="\n")
        path = game_folder / GAME_FILE
        content = path.read_bytes()
        tables = format_tables(read_game(content, str(path)), content)
        (game_folder / TABLES_FILE).write_bytes(tables)
        progress(1)
    text = json.dumps({**manifest, "sha256": hash_games(folder)}, indent=1)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8", newline="\n")
