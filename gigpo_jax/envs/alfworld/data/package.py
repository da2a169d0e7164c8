"""Reads the tables of the installed `alfworld` package from its files.

They are not imported: a package installed with `--no-deps` has the files, but cannot be imported.
"""

import functools
import importlib.util
import json
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gigpo_jax.errors import InputError

INSTALL = "pip install --no-deps alfworld==0.4.2"
ROOM_KINDS = ("Kitchen", "LivingRoom", "Bedroom", "Bathroom")


@dataclass(frozen=True)
class Package:
    """The tables of the package, with every set sorted."""

    layouts: Path  # the folder of the floor plans
    domain: str  # text of the PDDL domain, the same for every game
    grammar: str  # text of the grammar, with `UNKNOWN GOAL` where the task goes
    holds: Mapping[str, tuple[str, ...]]  # receptacle type, sorted -> the object types that may lie there
    actions: Mapping[str, tuple[str, ...]]  # "Heatable", "Coolable", "Cleanable", "Toggleable", ... -> object types
    openable: tuple[str, ...]  # receptacle types that can be opened
    containers: tuple[str, ...]  # object types that could hold other objects (mugs, pans, boxes)
    object_types: tuple[str, ...]  # all object types, receptacles of rooms left out
    train_scenes: tuple[int, ...]  # numbers of the rooms for training
    test_scenes: tuple[int, ...]  # numbers of the rooms that training never uses
    room_kinds: Mapping[str, tuple[str, ...]]  # task type -> the kinds of room it happens in
    room_of: Mapping[str, tuple[int, ...]]  # kind of room -> its scene numbers
    goals: Mapping[str, str]  # task type -> its goal in PDDL, with {obj}, {recep} and {toggle} to fill in
    phrases: Mapping[str, tuple[str, ...]]  # task type -> its wordings, with the same places to fill in


def package_folder() -> Path:
    found = importlib.util.find_spec("alfworld")  # does not import the package
    if found is None or not found.submodule_search_locations:
        raise InputError(f"alfworld: the package with the floor plans is not installed; get it with: {INSTALL}")
    return Path(next(iter(found.submodule_search_locations)))


def _plain(names: object) -> tuple[str, ...]:
    assert isinstance(names, set | list | tuple)
    return tuple(sorted(name for name in names if not name.endswith("Sliced")))


@functools.lru_cache(maxsize=1)
def read_package() -> Package:
    """Reads the tables of the installed package once; InputError if it is missing, or another release."""
    folder = package_folder()
    try:
        constants = runpy.run_path(str(folder / "gen" / "constants.py"))
        goals = runpy.run_path(str(folder / "gen" / "goal_library.py"))["gdict"]
        domain = (folder / "data" / "alfred.pddl").read_text(encoding="utf-8")
        grammar = (folder / "data" / "alfred.twl2").read_text(encoding="utf-8")
        return _package(folder, constants, goals, domain, grammar)
    except (OSError, KeyError, ImportError, AttributeError, AssertionError) as err:
        raise InputError(f"alfworld: cannot read {folder} ({err!r}); reinstall it with: {INSTALL}") from err


def _package(folder: Path, constants: dict, goals: dict, domain: str, grammar: str) -> Package:
    movable = set(constants["MOVABLE_RECEPTACLES"])
    room_types = (set(constants["RECEPTACLES"]) | set(constants["VAL_RECEPTACLE_OBJECTS"])) - movable
    lies_in = constants["VAL_RECEPTACLE_OBJECTS"]
    return Package(
        layouts=folder / "gen" / "layouts",
        domain=domain,
        grammar=grammar,
        holds={kind: _plain(lies_in.get(kind, ())) for kind in sorted(room_types)},
        actions={action: _plain(kinds) for action, kinds in sorted(constants["VAL_ACTION_OBJECTS"].items())},
        openable=_plain(set(constants["OPENABLE_CLASS_LIST"]) - movable),
        containers=tuple(sorted(movable)),
        object_types=_plain(set(constants["OBJECTS"]) - room_types),
        train_scenes=tuple(sorted(constants["TRAIN_SCENE_NUMBERS"])),
        test_scenes=tuple(sorted(constants["TEST_SCENE_NUMBERS"])),
        room_kinds={kind: tuple(sorted(rooms)) for kind, rooms in constants["GOALS_VALID"].items()},
        room_of={kind: tuple(constants["SCENE_TYPE"][kind]) for kind in ROOM_KINDS},
        goals={kind: entry["pddl"].replace("#", "-") for kind, entry in goals.items()},
        phrases={kind: tuple(entry["templates"]) for kind, entry in goals.items()},
    )


def read_layout(scene: int) -> tuple[dict[str, list[float]], tuple[str, ...]]:
    """Reads a floor plan by its number, such as 7 or 301.

    Returns:
      The receptacles (raw id -> x, z in metres, rotation and camera horizon in degrees of where one stands before it)
      and the sorted types of all things in the room.
    """
    layouts = read_package().layouts
    try:
        receptacles = json.loads((layouts / f"FloorPlan{scene}-openable.json").read_text(encoding="utf-8"))
        things = json.loads((layouts / f"FloorPlan{scene}-objects.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise InputError(f"alfworld: cannot read floor plan {scene} in {layouts}; reinstall: {INSTALL}") from err
    return receptacles, tuple(sorted(things))
