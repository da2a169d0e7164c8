"""The shortest walkthrough of a room, from full knowledge of it.

An agent carries one object at a time. A shortest plan takes each object of the task in some order: take it, change it
if the task says so, put it down. All choices of objects, receptacles and tools are tried.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from gigpo_jax.envs.alfworld.data.package import Package
from gigpo_jax.envs.alfworld.data.room import Room, Thing, display_names
from gigpo_jax.envs.alfworld.data.scenes import Receptacle


@dataclass
class _Walk:
    """A plan under construction, with the agent's location and the open receptacles after its commands."""

    names: dict[str, str]
    location: str
    opened: frozenset[str] = frozenset()
    commands: tuple[str, ...] = ()

    def say(self, command: str) -> None:
        self.commands += (command,)

    def visit(self, place: Receptacle, *, reach_in: bool = True) -> None:
        if self.location != place.location:
            self.location = place.location
            self.say(f"go to {self.names[place.id]}")
        if reach_in and place.openable and place.id not in self.opened:
            self.opened |= {place.id}
            self.say(f"open {self.names[place.id]}")


class _Plans:
    def __init__(self, package: Package, room: Room):
        self.package, self.room, self.goal = package, room, room.goal
        self.names = display_names([place.id for place in room.receptacles] + [thing.id for thing in room.things])
        self.places = {place.id: place for place in room.receptacles}
        self.objects = [thing for thing in room.things if thing.type == room.goal.object]

    def _start(self) -> _Walk:
        return _Walk(self.names, self.room.start)

    def _of_type(self, kind: str) -> list[Receptacle]:
        return [place for place in self.room.receptacles if place.type == kind]

    def _take(self, walk: _Walk, thing: Thing) -> None:
        place = self.places[thing.place]
        walk.visit(place)
        walk.say(f"take {self.names[thing.id]} from {self.names[place.id]}")

    def _put(self, walk: _Walk, thing: Thing, target: Receptacle) -> None:
        walk.visit(target)
        walk.say(f"move {self.names[thing.id]} to {self.names[target.id]}")

    def put_one(self) -> Iterator[_Walk]:
        """Plans for one object, cleaned, heated or cooled if the task says so."""
        change = self.goal.change
        tools: list[Receptacle | None] = [None]
        if change is not None:
            tools = list(self._of_type(change.tool))
            self.objects = [thing for thing in self.objects if thing.type in self.package.actions[change.ability]]
        targets = self._targets()
        for thing, tool, target in itertools.product(self.objects, tools, targets):
            walk = self._start()
            self._take(walk, thing)
            if change is not None and tool is not None:
                walk.visit(tool, reach_in=False)
                walk.say(f"{change.verb} {self.names[thing.id]} with {self.names[tool.id]}")
            self._put(walk, thing, target)
            yield walk

    def put_two(self) -> Iterator[_Walk]:
        """Plans for two objects of a type in one receptacle; those that start there count."""
        for target in self._targets():
            there = sum(thing.place == target.id for thing in self.objects)
            others = [thing for thing in self.objects if thing.place != target.id]
            for errands in itertools.permutations(others, max(0, self.goal.count - there)):
                walk = self._start()
                for thing in errands:
                    self._take(walk, thing)
                    self._put(walk, thing, target)
                yield walk

    def look(self) -> Iterator[_Walk]:
        """Plans that end at a lamp that is on, with the object in hand."""
        lamps = [thing for thing in self.room.things if thing.type == self.goal.lamp]
        for thing, lamp in itertools.product(self.objects, lamps):
            walk = self._start()
            self._take(walk, thing)
            walk.visit(self.places[lamp.place], reach_in=False)
            walk.say(f"use {self.names[lamp.id]}")
            yield walk

    def _targets(self) -> list[Receptacle]:
        if self.goal.object not in self.package.holds.get(self.goal.receptacle, ()):
            return []
        return self._of_type(self.goal.receptacle)

    def satisfied(self) -> bool:
        """Whether the goal holds at the start; it cannot if the task needs a change of state or a lamp."""
        if self.goal.change is not None or self.goal.lamp:
            return False
        types = {place.id: place.type for place in self.room.receptacles}
        lying = [thing.place for thing in self.objects if types[thing.place] == self.goal.receptacle]
        return any(lying.count(place) >= self.goal.count for place in lying)


def walkthrough(package: Package, room: Room) -> tuple[str, ...] | None:
    """The shortest commands that reach the goal: () if it holds at the start, None if it cannot be reached.

    Of several shortest plans, the first in alphabetical order.
    """
    plans = _Plans(package, room)
    if plans.satisfied():
        return ()
    if room.goal.lamp:
        walks = plans.look()
    elif room.goal.count == 2:
        walks = plans.put_two()
    else:
        walks = plans.put_one()
    return min((walk.commands for walk in walks), key=lambda commands: (len(commands), commands), default=None)
