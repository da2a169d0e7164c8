"""Draws random rooms and tasks until the task can be solved."""

import random
from collections.abc import Sequence

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.alfworld.data.package import Package
from gigpo_jax.envs.alfworld.data.room import FurnishedRoom, Thing
from gigpo_jax.envs.alfworld.data.room_size import RoomSize
from gigpo_jax.envs.alfworld.data.scenes import (
    Receptacle,
    Scene,
    format_coordinate,
    list_scenes,
    name_location,
    read_scene,
)
from gigpo_jax.envs.alfworld.data.walkthrough import find_walkthrough
from gigpo_jax.envs.alfworld.tasks import Change, Goal

_LAMP = "DeskLamp"
_LAMP_STANDS = ("Desk", "SideTable", "Dresser", "Shelf", "DiningTable", "CoffeeTable")
# Copies of each object type in a full room, with their weights.
_COPIES = (0, 1, 2, 3)
_COPY_WEIGHTS = (3, 5, 3, 1)
# Further copies of the task's object in a full room, with their weights.
_EXTRA_COPIES = (0, 1, 2)
_EXTRA_COPY_WEIGHTS = (3, 2, 1)
# Objects are more often in open receptacles.
_OPEN_WEIGHT = 3
_CLOSED_WEIGHT = 1
_ATTEMPTS = 1000


# Games follow from seeds: reordering the calls of `rng` in this class, or changing how often one is
# called, changes every generated game and breaks the panels that froze them.
class _RoomDrawer:
    """Draws a goal and a room for one floor plan."""

    def __init__(self, package: Package, scene: Scene, size: RoomSize, rng: random.Random):
        self._package = package
        self._scene = scene
        self._size = size
        self._rng = rng

    def draw_goal(self, task_type: str) -> Goal | None:
        """Draws a goal whose object can start outside its target; None if the room has none."""
        if task_type == "look_at_obj_in_light":
            stands = self._allowed_receptacles(_LAMP, self._scene.receptacles)
            if _LAMP not in self._scene.lamps or not stands:
                return None
            return Goal(task_type, self._rng.choice(self._scene.object_types), lamp=_LAMP)
        change = Goal(task_type, "").change
        if change is not None and not self._scene.receptacles_of_type(change.tool):
            return None
        targets = self._list_targets(change)
        if not targets:
            return None
        object_type = self._rng.choice(sorted(targets))
        return Goal(task_type, object_type, receptacle=self._rng.choice(targets[object_type]))

    def _list_targets(self, change: Change | None) -> dict[str, list[str]]:
        """Returns object type -> receptacle types for a task."""
        receptacle_types = sorted({receptacle.type for receptacle in self._scene.receptacles})
        targets: dict[str, list[str]] = {}
        for object_type in self._scene.object_types:
            if change is not None and object_type not in self._package.actions[change.ability]:
                continue
            holders = [
                kind for kind in receptacle_types if object_type in self._package.holds[kind]
            ]
            # With one type of receptacle the object could start in its target only.
            if len(holders) < 2:
                continue
            if change is not None:
                target_types = [kind for kind in holders if kind != change.tool]
            else:
                target_types = holders
            targets[object_type] = target_types
        return targets

    def draw_room(self, goal: Goal) -> FurnishedRoom | None:
        """A room for a goal; None if this draw fails."""
        sources = self._list_sources(goal)
        if not sources:
            return None
        lamp_stand = None
        if goal.lamp:
            stands = self._allowed_receptacles(_LAMP, self._scene.receptacles)
            lamp_stand = self._draw_place(stands)
        copies = self._draw_copies(goal)
        places = [self._draw_place(sources) for _ in range(copies)]
        receptacles = self._draw_receptacles(goal, places, lamp_stand)
        if receptacles is None:
            return None
        objects = [(goal.object, place) for place in places]
        if lamp_stand is not None:
            objects.append((goal.lamp, lamp_stand))
        clutter = self._draw_clutter(goal, receptacles, len(objects))
        if clutter is None:
            return None
        things = self._name_objects(objects + clutter)
        # The agent starts where nothing is, so that the first text lists the whole room.
        start = self._draw_start(receptacles)
        return FurnishedRoom(self._scene.number, tuple(receptacles), things, start, goal)

    def _allowed_receptacles(
        self, object_type: str, receptacles: Sequence[Receptacle]
    ) -> list[Receptacle]:
        if object_type == _LAMP:
            return [receptacle for receptacle in receptacles if receptacle.type in _LAMP_STANDS]
        return [
            receptacle
            for receptacle in receptacles
            if object_type in self._package.holds[receptacle.type]
        ]

    def _draw_place(self, receptacles: Sequence[Receptacle]) -> Receptacle:
        weights = []
        for receptacle in receptacles:
            weights.append(_CLOSED_WEIGHT if receptacle.openable else _OPEN_WEIGHT)
        return self._rng.choices(receptacles, weights)[0]

    def _list_sources(self, goal: Goal) -> list[Receptacle]:
        """The receptacles in which the task's objects may start."""
        receptacles = self._allowed_receptacles(goal.object, self._scene.receptacles)
        # An object that must be changed may start at the target, as the goal does not hold there
        # yet; in a small room it always starts elsewhere.
        if goal.change is not None and self._size.receptacles is None:
            return receptacles
        return [receptacle for receptacle in receptacles if receptacle.type != goal.receptacle]

    def _draw_copies(self, goal: Goal) -> int:
        """Number of the task's objects."""
        if self._size.objects is not None:
            return goal.count
        return goal.count + self._rng.choices(_EXTRA_COPIES, _EXTRA_COPY_WEIGHTS)[0]

    def _draw_receptacles(
        self, goal: Goal, places: list[Receptacle], lamp_stand: Receptacle | None
    ) -> list[Receptacle] | None:
        """The receptacles of the room, or None if the task needs more than a small room has.

        A full room has all receptacles; a small one has the task's and a few others.
        """
        if self._size.receptacles is None:
            return list(self._scene.receptacles)
        needed = list(places)
        if lamp_stand is not None:
            needed.append(lamp_stand)
        if goal.receptacle:
            needed.append(self._rng.choice(self._scene.receptacles_of_type(goal.receptacle)))
        if goal.change is not None:
            needed.append(self._rng.choice(self._scene.receptacles_of_type(goal.change.tool)))
        selection = {receptacle.id: receptacle for receptacle in needed}
        count = self._rng.randint(*self._size.receptacles)
        candidates = [
            receptacle for receptacle in self._scene.receptacles if receptacle.id not in selection
        ]
        # The task's receptacles may coincide, or be more than the drawn number allows.
        missing_count = count - len(selection)
        if not 0 <= missing_count <= len(candidates):
            return None
        for receptacle in self._rng.sample(candidates, missing_count):
            selection[receptacle.id] = receptacle
        # In the order of ids, whatever the order of draws: the game lists things by id.
        return [selection[raw_id] for raw_id in sorted(selection)]

    def _draw_clutter(
        self, goal: Goal, receptacles: list[Receptacle], needed_count: int
    ) -> list[tuple[str, Receptacle]] | None:
        """Draws objects that the task does not need; None if the receptacles hold too few."""
        candidates = []
        for object_type in self._scene.object_types:
            if object_type != goal.object and self._allowed_receptacles(object_type, receptacles):
                candidates.append(object_type)
        object_types = []
        if self._size.objects is None:
            counts = self._rng.choices(_COPIES, _COPY_WEIGHTS, k=len(candidates))
            for object_type, count in zip(candidates, counts):
                object_types += [object_type] * count
        else:
            count = self._rng.randint(*self._size.objects) - needed_count
            if count > 0 and not candidates:
                return None
            object_types = [self._rng.choice(candidates) for _ in range(count)]
        clutter = []
        for object_type in object_types:
            place = self._draw_place(self._allowed_receptacles(object_type, receptacles))
            clutter.append((object_type, place))
        return clutter

    def _name_objects(self, objects: list[tuple[str, Receptacle]]) -> tuple[Thing, ...]:
        """Gives every object a raw id, with random coordinates."""
        things: dict[str, Thing] = {}
        for object_type, place in objects:
            raw_id = self._draw_id(object_type)
            while raw_id in things:
                raw_id = self._draw_id(object_type)
            things[raw_id] = Thing(raw_id, object_type, place.id)
        return tuple(things[raw_id] for raw_id in sorted(things))

    def _draw_id(self, object_type: str) -> str:
        coordinates = [self._rng.randrange(-900, 901) / 100 for _ in range(3)]
        return "|".join((object_type, *map(format_coordinate, coordinates)))

    def _draw_start(self, receptacles: list[Receptacle]) -> str:
        """A location with no receptacle."""
        occupied = {receptacle.location for receptacle in receptacles}
        while True:
            x = self._rng.randint(-8, 8)
            z = self._rng.randint(-8, 8)
            quarter_turns = self._rng.randrange(4)
            start = name_location(x / 4, z / 4, 90 * quarter_turns, 30)
            if start not in occupied:
                return start


def draw_game(
    package: Package, split: str, task_type: str, size: RoomSize, rng: random.Random
) -> tuple[FurnishedRoom, tuple[str, ...]]:
    """Draws rooms until one has a solvable, unsolved task.

    Returns:
      The room, and its shortest walkthrough.

    Raises:
      InputError: no such room in many draws: the size does not fit the rooms or the task.
    """
    task_scenes: set[int] = set()
    for room_kind in package.room_kinds[task_type]:
        task_scenes.update(package.scenes_of[room_kind])
    # The list of the split gives the order of the choice, and not the set.
    scenes = [number for number in list_scenes(package, split) if number in task_scenes]
    for _ in range(_ATTEMPTS):
        drawer = _RoomDrawer(package, read_scene(rng.choice(scenes)), size, rng)
        goal = drawer.draw_goal(task_type)
        room = drawer.draw_room(goal) if goal is not None else None
        if room is None:
            continue
        walkthrough = find_walkthrough(package, room)
        # Neither unsolvable (None) nor solved at the start ().
        if walkthrough:
            return room, walkthrough
    raise InputError(
        f"no room of {split} has a solvable {task_type} game with objects={size.objects}",
        key="receptacles",
        value=str(size.receptacles),
        fix="allow at least 4 receptacles, and no more than the rooms have (some 10 to 30)",
    )
