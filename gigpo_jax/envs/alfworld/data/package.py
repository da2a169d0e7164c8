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

from gigpo_jax.core.errors import InputError

INSTALL = "pip install --no-deps alfworld==0.4.2"
ROOM_KINDS = ("Kitchen", "LivingRoom", "Bedroom", "Bathroom")


@dataclass(frozen=True)
class Package:
    """The tables of the package, with every set sorted.

    Attributes:
      layouts: Folder of the floor plans.
      domain: Text of the PDDL domain, the same for every game.
      grammar: Text of the grammar, with `UNKNOWN GOAL` in the place of the task.
      holds: Receptacle type, sorted -> object types that it may hold.
      actions: "Heatable", "Coolable", "Cleanable", "Toggleable", ... -> object types.
      openable: Receptacle types with a door.
      containers: Object types that could hold other objects (mugs, pans, boxes).
      object_types: All object types, receptacles of rooms left out.
      train_scenes: Numbers of the rooms for training.
      test_scenes: Numbers of the rooms that training never uses.
      room_kinds: Task type -> kinds of room it happens in.
      scenes_of: Kind of room -> its scene numbers.
      goals: Task type -> its goal in PDDL, with {obj}, {recep} and {toggle} to fill in.
      phrases: Task type -> its wordings, with the same fields to fill in.
    """

    layouts: Path
    domain: str
    grammar: str
    holds: Mapping[str, tuple[str, ...]]
    actions: Mapping[str, tuple[str, ...]]
    openable: tuple[str, ...]
    containers: tuple[str, ...]
    object_types: tuple[str, ...]
    train_scenes: tuple[int, ...]
    test_scenes: tuple[int, ...]
    room_kinds: Mapping[str, tuple[str, ...]]
    scenes_of: Mapping[str, tuple[int, ...]]
    goals: Mapping[str, str]
    phrases: Mapping[str, tuple[str, ...]]


def find_package() -> Path:
    spec = importlib.util.find_spec("alfworld")  # does not import the package
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "the package with the floor plans is not installed",
            key="alfworld",
            fix=f"get it with: {INSTALL}",
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _sort_whole(names: object) -> tuple[str, ...]:
    """Sorts types, without types of sliced objects: generated games start with whole objects."""
    assert isinstance(names, set | list | tuple)
    return tuple(sorted(name for name in names if not name.endswith("Sliced")))


@functools.lru_cache(maxsize=1)
def read_package() -> Package:
    """Reads the tables of the installed package, once.

    Raises:
      InputError: the package is missing, or of another release.
    """
    folder = find_package()
    try:
        constants = runpy.run_path(str(folder / "gen" / "constants.py"))
        goals = runpy.run_path(str(folder / "gen" / "goal_library.py"))["gdict"]
        domain = (folder / "data" / "alfred.pddl").read_text(encoding="utf-8")
        grammar = (folder / "data" / "alfred.twl2").read_text(encoding="utf-8")
        # Inside the `try`: another release may lack a table or have another form.
        return _make_package(folder, constants, goals, domain, grammar)
    except (OSError, KeyError, ImportError, AttributeError, AssertionError) as err:
        raise InputError(
            f"cannot read {folder} ({err!r})", key="alfworld", fix=f"reinstall it with: {INSTALL}"
        ) from err


def _make_package(folder: Path, constants: dict, goals: dict, domain: str, grammar: str) -> Package:
    movable = set(constants["MOVABLE_RECEPTACLES"])
    contents = constants["VAL_RECEPTACLE_OBJECTS"]
    # A movable receptacle, such as a pan, is an object that is carried.
    receptacle_types = (set(constants["RECEPTACLES"]) | set(contents)) - movable
    return Package(
        layouts=folder / "gen" / "layouts",
        domain=domain,
        grammar=grammar,
        # The package has sets, whose order depends on PYTHONHASHSEED; draws from them must not.
        holds={kind: _sort_whole(contents.get(kind, ())) for kind in sorted(receptacle_types)},
        actions={
            action: _sort_whole(kinds)
            for action, kinds in sorted(constants["VAL_ACTION_OBJECTS"].items())
        },
        openable=_sort_whole(set(constants["OPENABLE_CLASS_LIST"]) - movable),
        containers=tuple(sorted(movable)),
        object_types=_sort_whole(set(constants["OBJECTS"]) - receptacle_types),
        train_scenes=tuple(sorted(constants["TRAIN_SCENE_NUMBERS"])),
        test_scenes=tuple(sorted(constants["TEST_SCENE_NUMBERS"])),
        room_kinds={kind: tuple(sorted(rooms)) for kind, rooms in constants["GOALS_VALID"].items()},
        scenes_of={kind: tuple(constants["SCENE_TYPE"][kind]) for kind in ROOM_KINDS},
        # In the package # stands for the dash before a type.
        goals={kind: entry["pddl"].replace("#", "-") for kind, entry in goals.items()},
        phrases={kind: tuple(entry["templates"]) for kind, entry in goals.items()},
    )


def read_layout(scene: int) -> tuple[dict[str, list[float]], tuple[str, ...]]:
    """Reads a floor plan by number, such as 7.

    Returns:
      receptacles: Raw id -> position before the receptacle: x and z in metres, rotation and camera
        horizon in degrees.
      object_types: Types of all things in the room, sorted.
    """
    layouts = read_package().layouts
    receptacles_path = layouts / f"FloorPlan{scene}-openable.json"
    objects_path = layouts / f"FloorPlan{scene}-objects.json"
    try:
        receptacles = json.loads(receptacles_path.read_text(encoding="utf-8"))
        object_types = json.loads(objects_path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise InputError(
            f"cannot read floor plan {scene} in {layouts}",
            key="alfworld",
            fix=f"reinstall: {INSTALL}",
        ) from err
    return receptacles, tuple(sorted(object_types))
