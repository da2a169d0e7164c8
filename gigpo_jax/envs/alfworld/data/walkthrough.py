"""The shortest walkthrough of a room, from full knowledge of it.

An agent carries one object at a time. The shortest one takes each object of the task in some order:
take it, change it if the task says so, put it down. All choices of objects, receptacles and tools
are tried.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from gigpo_jax.envs.alfworld.data.package import Package
from gigpo_jax.envs.alfworld.data.room import FurnishedRoom, Thing, make_display_names
from gigpo_jax.envs.alfworld.data.scenes import Receptacle


@dataclass
class _RoomWalk:
    """A walk under construction.

    Attributes:
      names: Raw id -> display name.
      location: Location of the agent after the commands.
      opened: Receptacles that are open after them.
      commands: Commands so far.
    """

    names: dict[str, str]
    location: str
    opened: frozenset[str] = frozenset()
    commands: tuple[str, ...] = ()

    def add(self, command: str) -> None:
        self.commands += (command,)

    def visit(self, receptacle: Receptacle, *, reach_in: bool = True) -> None:
        """Walks to a receptacle; opens it to reach in."""
        name = self.names[receptacle.id]
        if self.location != receptacle.location:
            self.location = receptacle.location
            self.add(f"go to {name}")
        if reach_in and receptacle.openable and receptacle.id not in self.opened:
            self.opened |= {receptacle.id}
            self.add(f"open {name}")

    def take(self, thing: Thing, receptacle: Receptacle) -> None:
        self.visit(receptacle)
        self.add(f"take {self.names[thing.id]} from {self.names[receptacle.id]}")

    def put_down(self, thing: Thing, receptacle: Receptacle) -> None:
        self.visit(receptacle)
        self.add(f"move {self.names[thing.id]} to {self.names[receptacle.id]}")


class _WalkSearch:
    """The walks of one room that reach the goal."""

    def __init__(self, package: Package, room: FurnishedRoom):
        self._package = package
        self._room = room
        self._goal = room.goal
        raw_ids = [receptacle.id for receptacle in room.receptacles]
        raw_ids += [thing.id for thing in room.things]
        self._names = make_display_names(raw_ids)
        self._receptacles = {receptacle.id: receptacle for receptacle in room.receptacles}
        self._objects = [thing for thing in room.things if thing.type == room.goal.object]

    def _start_walk(self) -> _RoomWalk:
        return _RoomWalk(self._names, self._room.start)

    def _receptacles_of_type(self, kind: str) -> list[Receptacle]:
        return [receptacle for receptacle in self._room.receptacles if receptacle.type == kind]

    def move_one(self) -> Iterator[_RoomWalk]:
        """Walks with one object, which the task wants cleaned, heated, cooled or as it is."""
        change = self._goal.change
        if change is None:
            for thing, target in itertools.product(self._objects, self._targets()):
                walk = self._start_walk()
                walk.take(thing, self._receptacles[thing.place])
                walk.put_down(thing, target)
                yield walk
            return
        tools = self._receptacles_of_type(change.tool)
        changeable_types = self._package.actions[change.ability]
        objects = [thing for thing in self._objects if thing.type in changeable_types]
        for thing, tool, target in itertools.product(objects, tools, self._targets()):
            walk = self._start_walk()
            walk.take(thing, self._receptacles[thing.place])
            walk.visit(tool, reach_in=False)
            walk.add(f"{change.verb} {self._names[thing.id]} with {self._names[tool.id]}")
            walk.put_down(thing, target)
            yield walk

    def move_two(self) -> Iterator[_RoomWalk]:
        """Walks with two objects of a type in a receptacle, where those that start there count."""
        for target in self._targets():
            # Objects that start in this target stay there and count.
            outside = [thing for thing in self._objects if thing.place != target.id]
            inside_count = len(self._objects) - len(outside)
            missing_count = max(0, self._goal.count - inside_count)
            # Either order: what is opened on the way makes one of them shorter.
            for things in itertools.permutations(outside, missing_count):
                walk = self._start_walk()
                for thing in things:
                    walk.take(thing, self._receptacles[thing.place])
                    walk.put_down(thing, target)
                yield walk

    def light_one(self) -> Iterator[_RoomWalk]:
        """Walks to a lit lamp, the object in hand."""
        lamps = [thing for thing in self._room.things if thing.type == self._goal.lamp]
        for thing, lamp in itertools.product(self._objects, lamps):
            walk = self._start_walk()
            walk.take(thing, self._receptacles[thing.place])
            walk.visit(self._receptacles[lamp.place], reach_in=False)
            walk.add(f"use {self._names[lamp.id]}")
            yield walk

    def _targets(self) -> list[Receptacle]:
        if self._goal.object not in self._package.holds.get(self._goal.receptacle, ()):
            return []
        return self._receptacles_of_type(self._goal.receptacle)

    def holds_at_start(self) -> bool:
        """Whether the goal holds at the start."""
        # A change of state or a lamp that is on never does.
        if self._goal.change is not None or self._goal.lamp:
            return False
        places = [thing.place for thing in self._objects]
        return any(
            places.count(target.id) >= self._goal.count
            for target in self._receptacles_of_type(self._goal.receptacle)
        )


def find_walkthrough(package: Package, room: FurnishedRoom) -> tuple[str, ...] | None:
    """Returns the shortest commands that reach the goal, the alphabetically first of several.

    Returns:
      Commands; () if the goal holds at the start, None if it cannot be reached.
    """
    search = _WalkSearch(package, room)
    if search.holds_at_start():
        return ()
    if room.goal.lamp:
        walks = search.light_one()
    elif room.goal.count == 2:
        walks = search.move_two()
    else:
        walks = search.move_one()
    walkthroughs = [walk.commands for walk in walks]
    # The text decides between equal lengths: the walkthrough is in the hashed game file.
    return min(walkthroughs, key=lambda commands: (len(commands), commands), default=None)
