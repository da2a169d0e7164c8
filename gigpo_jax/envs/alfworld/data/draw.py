"""Draws random rooms and tasks until the task can be solved."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gigpo_jax.envs.alfworld.data.package import Package
from gigpo_jax.envs.alfworld.data.planner import walkthrough
from gigpo_jax.envs.alfworld.data.room import Room, Thing
from gigpo_jax.envs.alfworld.data.scenes import Receptacle, Scene, coordinate, location_name, read_scene, split_scenes
from gigpo_jax.envs.alfworld.tasks import TASK_TYPES, Goal
from gigpo_jax.errors import InputError

_LAMP = "DeskLamp"
_LAMP_STANDS_ON = ("Desk", "SideTable", "Dresser", "Shelf", "DiningTable", "CoffeeTable")
_COPIES = ((0, 1, 2, 3), (3, 5, 3, 1))  # of each object type in a full room, with weights
_OPEN_WEIGHT, _CLOSED_WEIGHT = 3, 1  # objects are more often in open receptacles
_ATTEMPTS = 1000


@dataclass(frozen=True)
class RoomSize:
    """The size of rooms."""

    receptacles: tuple[int, int] | None = None  # least and greatest number; None for all that the floor plan has
    objects: tuple[int, int] | None = None  # least and greatest number; None for what such a room usually holds


SIZES = {"full": RoomSize(), "small": RoomSize(receptacles=(4, 6), objects=(3, 5))}


def room_size(size: str, receptacles: object = None, objects: object = None) -> RoomSize:
    """A named size, with one or both of its ranges replaced by a number or a (least, greatest) pair.

    Raises:
      InputError: an unknown name, or a range in which no task fits.
    """
    if size not in SIZES:
        raise InputError(f"size={size!r}: no such size; choose one of {', '.join(sorted(SIZES))}")
    named = SIZES[size]
    return RoomSize(
        _pair("receptacles", receptacles, 3) if receptacles is not None else named.receptacles,
        _pair("objects", objects, 2) if objects is not None else named.objects,
    )


def _pair(key: str, value: object, least: int) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, list | tuple) else ()
    if len(pair) != 2 or not all(isinstance(end, int) for end in pair) or not least <= pair[0] <= pair[1]:
        raise InputError(f"{key}={value!r}: give a number or a (least, greatest) pair, at least {least}")
    return pair[0], pair[1]


class _Drawer:
    def __init__(self, package: Package, scene: Scene, size: RoomSize, rng: random.Random):
        self.package, self.scene, self.size, self.rng = package, scene, size, rng

    def _allowed(self, kind: str, places: Sequence[Receptacle]) -> list[Receptacle]:
        if kind == _LAMP:
            return [place for place in places if place.type in _LAMP_STANDS_ON]
        return [place for place in places if kind in self.package.holds[place.type]]

    def _place(self, places: Sequence[Receptacle]) -> Receptacle:
        weights = [_CLOSED_WEIGHT if place.openable else _OPEN_WEIGHT for place in places]
        return self.rng.choices(places, weights)[0]

    def goal(self, task_type: str) -> Goal | None:
        """A goal whose object can start in another receptacle than its target; None if the room has none."""
        if task_type == "look_at_obj_in_light":
            if _LAMP not in self.scene.lamps or not self._allowed(_LAMP, self.scene.receptacles):
                return None
            return Goal(task_type, self.rng.choice(self.scene.object_types), lamp=_LAMP)
        goal = Goal(task_type, "")
        if goal.change is not None and not self.scene.of_type(goal.change.tool):
            return None
        room_types = sorted({place.type for place in self.scene.receptacles})
        choices = {}
        for kind in self.scene.object_types:
            if goal.change is not None and kind not in self.package.actions[goal.change.ability]:
                continue
            holders = [place for place in room_types if kind in self.package.holds[place]]
            targets = [place for place in holders if goal.change is None or place != goal.change.tool]
            if targets and len(holders) > 1:
                choices[kind] = targets
        if not choices:
            return None
        kind = self.rng.choice(sorted(choices))
        return Goal(task_type, kind, receptacle=self.rng.choice(choices[kind]))

    def _sources(self, goal: Goal, places: Sequence[Receptacle]) -> list[Receptacle]:
        """Where the task's objects may start; at the target only in a full room, if they must be changed first."""
        anywhere = goal.change is not None and self.size.receptacles is None
        return [place for place in self._allowed(goal.object, places) if anywhere or place.type != goal.receptacle]

    def _choose_places(
        self, goal: Goal, homes: list[Receptacle], lamp_on: Receptacle | None
    ) -> list[Receptacle] | None:
        """All receptacles; in a small room, those of the task and a few others; None if that is too many."""
        if self.size.receptacles is None:
            return list(self.scene.receptacles)
        needed = list(homes) + ([lamp_on] if lamp_on else [])
        if goal.receptacle:
            needed.append(self.rng.choice(self.scene.of_type(goal.receptacle)))
        if goal.change is not None:
            needed.append(self.rng.choice(self.scene.of_type(goal.change.tool)))
        chosen = {place.id: place for place in needed}
        wanted = self.rng.randint(*self.size.receptacles)
        others = [place for place in self.scene.receptacles if place.id not in chosen]
        if not 0 <= wanted - len(chosen) <= len(others):
            return None
        for place in self.rng.sample(others, wanted - len(chosen)):
            chosen[place.id] = place
        return [chosen[name] for name in sorted(chosen)]

    def _clutter(self, goal: Goal, places: list[Receptacle], needed: int) -> list[tuple[str, Receptacle]] | None:
        """Objects that the task does not need; None if too few fit in the receptacles."""
        kinds = [kind for kind in self.scene.object_types if kind != goal.object and self._allowed(kind, places)]
        if self.size.objects is None:
            counts = self.rng.choices(*_COPIES, k=len(kinds))
            drawn = [kind for kind, count in zip(kinds, counts) for _ in range(count)]
        else:
            wanted = self.rng.randint(*self.size.objects) - needed
            if wanted > 0 and not kinds:
                return None
            drawn = [self.rng.choice(kinds) for _ in range(wanted)]
        return [(kind, self._place(self._allowed(kind, places))) for kind in drawn]

    def _copies(self, goal: Goal) -> int:
        if self.size.objects is not None:
            return goal.count
        return goal.count + self.rng.choices((0, 1, 2), (3, 2, 1))[0]

    def room(self, goal: Goal) -> Room | None:
        """A room for a goal; None if this draw fails."""
        sources = self._sources(goal, self.scene.receptacles)
        if not sources:
            return None
        lamp_on = self._place(self._allowed(_LAMP, self.scene.receptacles)) if goal.lamp else None
        homes = [self._place(sources) for _ in range(self._copies(goal))]
        places = self._choose_places(goal, homes, lamp_on)
        if places is None:
            return None
        lying = [(goal.object, home) for home in homes]
        if lamp_on is not None:
            lying.append((goal.lamp, lamp_on))
        clutter = self._clutter(goal, places, len(lying))
        if clutter is None:
            return None
        lying += clutter
        return Room(self.scene.number, tuple(places), self._named(lying), self._start(places), goal)

    def _named(self, lying: list[tuple[str, Receptacle]]) -> tuple[Thing, ...]:
        things: dict[str, Thing] = {}
        for kind, place in lying:
            while True:
                where = "|".join(coordinate(self.rng.randrange(-900, 901) / 100) for _ in range(3))
                if f"{kind}|{where}" not in things:
                    break
            things[f"{kind}|{where}"] = Thing(f"{kind}|{where}", kind, place.id)
        return tuple(things[name] for name in sorted(things))

    def _start(self, places: list[Receptacle]) -> str:
        taken = {place.location for place in places}
        while True:
            x, z, turn = self.rng.randint(-8, 8), self.rng.randint(-8, 8), self.rng.randrange(4)
            start = location_name(x / 4, z / 4, 90 * turn, 30)
            if start not in taken:
                return start


def draw_room(
    package: Package, split: str, task_type: str, size: RoomSize, rng: random.Random
) -> tuple[Room, tuple[str, ...]]:
    """Draws rooms until one has a solvable task that does not hold at the start; with its shortest walkthrough.

    Raises:
      InputError: no solvable room in many draws: the size does not fit the rooms or the task.
    """
    assert task_type in TASK_TYPES, task_type
    kinds = package.room_kinds[task_type]
    numbers = {number for kind in kinds for number in package.room_of[kind]}
    scenes = [number for number in split_scenes(package, split) if number in numbers]
    for _ in range(_ATTEMPTS):
        drawer = _Drawer(package, read_scene(rng.choice(scenes)), size, rng)
        goal = drawer.goal(task_type)
        room = drawer.room(goal) if goal is not None else None
        if room is None:
            continue
        if plan := walkthrough(package, room):
            return room, plan
    raise InputError(
        f"receptacles={size.receptacles}, objects={size.objects}: no room of {split} has a solvable {task_type} game of"
        " that size; allow at least 4 receptacles, and no more than the rooms have (some 10 to 30)"
    )
