"""An expert for ALFWorld that uses observations alone.

It searches likely receptacles first, those without a door before others, in a random order otherwise. It decides every
step from its knowledge of the room, so it can continue from any state.
"""

import random

from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs.alfworld.expert.beliefs import Beliefs, kind_of
from gigpo_jax.envs.alfworld.expert.likely_places import is_likely
from gigpo_jax.envs.alfworld.tasks import Goal, parse_phrase
from gigpo_jax.errors import InputError

_LOOK = "look"


class AlfworldExpert:
    """Plays one episode. The seed orders equally likely receptacles; `goal` and `beliefs` are None before the start."""

    def __init__(self, seed: int):
        self._rng = random.Random(f"alfworld expert {seed}")
        self._rank: dict[str, float] = {}
        self.goal: Goal | None = None
        self.beliefs: Beliefs | None = None

    def act(self, observation: Observation) -> str:
        """The next command; InputError if the task is not one of the templated phrases."""
        if self.beliefs is None or self.goal is None:
            self.goal = parse_phrase(observation.task)
            if self.goal is None:
                raise InputError(
                    f"task={observation.task!r}: the expert does not know this wording; play templated games"
                )
            self.beliefs = Beliefs(observation.text)
            self._rank = {name: self._rng.random() for name in self.beliefs.places}
        self.beliefs.update(observation)
        commands = observation.admissible or ()
        command = self._decide(self.goal, self.beliefs, commands)
        return command if command in commands or not commands else _LOOK

    def _decide(self, goal: Goal, known: Beliefs, commands: tuple[str, ...]) -> str:
        if not known.held:
            return self._fetch(goal, known)
        if kind_of(known.held) != goal.object:
            return self._get_rid(known, commands)
        if goal.lamp:
            return self._use_lamp(goal, known, commands)
        change = goal.change
        if change is not None and known.held not in known.changed[change.verb]:
            return self._change(change.verb, change.tool.lower(), known, commands)
        return self._put(goal, known, commands)

    def _nearest(self, known: Beliefs, places: list[str]) -> str:
        """The receptacle that takes the fewest steps to reach and open."""
        return min(places, key=lambda name: (self._distance(known, name), self._rank[name]))

    @staticmethod
    def _distance(known: Beliefs, name: str) -> int:
        closed = name in known.closed or (name not in known.contents and kind_of(name) in _DOORS)
        return (name not in known.here) + closed

    def _reach(self, known: Beliefs, name: str) -> str:
        return f"open {name}" if name in known.here and name in known.closed else f"go to {name}"

    def _fetch(self, goal: Goal, known: Beliefs) -> str:
        """Takes an object of the task from the nearest known place, or searches for one."""
        settled = self._settled(goal, known)
        verb = goal.change.verb if goal.change is not None else ""
        found = [(thing, place) for thing, place in known.where(goal.object) if place != settled]
        if not found:
            return self._explore(goal.object, known)
        thing, place = min(
            found,
            key=lambda pair: (
                self._distance(known, pair[1]) + (0 if not verb or pair[0] in known.changed[verb] else 2),
                self._rank[pair[1]],
                pair[0],
            ),
        )
        if self._distance(known, place) == 0:
            return f"take {thing} from {place}"
        return self._reach(known, place)

    def _settled(self, goal: Goal, known: Beliefs) -> str:
        """The receptacle that already holds one of two objects; "" if there is none."""
        if goal.count == 1:
            return ""
        counts = dict.fromkeys(known.of_kind(goal.receptacle), 0)
        for _, place in known.where(goal.object):
            if place in counts:
                counts[place] += 1
        return max(
            (name for name in counts if counts[name]), key=lambda name: (counts[name], self._rank[name]), default=""
        )

    def _explore(self, kind: str, known: Beliefs) -> str:
        """Searches the next receptacle for an object of a type."""
        unseen = [name for name in known.places if name not in known.contents]
        if not unseen:  # an object was moved: search everywhere again
            for name in known.places:
                if name not in known.here:
                    known.contents.pop(name, None)
            unseen = [name for name in known.places if name not in known.contents]
            if not unseen:
                return _LOOK
        best = min(
            unseen,
            key=lambda name: (not is_likely(kind_of(name), kind), self._distance(known, name), self._rank[name]),
        )
        return self._reach(known, best)

    def _get_rid(self, known: Beliefs, commands: tuple[str, ...]) -> str:
        """Puts down an object that the task does not need."""
        for command in commands:
            if command.startswith(f"move {known.held} to "):
                return command
        origin = known.origin.get(known.held, "")
        for name in sorted(known.here, key=self._rank.__getitem__):
            if name in known.closed and is_likely(kind_of(name), kind_of(known.held)):
                return f"open {name}"
        if origin and origin not in known.here:
            return f"go to {origin}"
        elsewhere = [name for name in known.places if name not in known.here]
        return f"go to {self._nearest(known, elsewhere)}" if elsewhere else _LOOK

    def _change(self, verb: str, tool: str, known: Beliefs, commands: tuple[str, ...]) -> str:
        """Cleans, heats or cools the held object."""
        for command in commands:
            if command.startswith(f"{verb} {known.held} with "):
                return command
        tools = [name for name in known.of_kind(tool) if name not in known.here]
        return f"go to {min(tools, key=self._rank.__getitem__)}" if tools else _LOOK

    def _put(self, goal: Goal, known: Beliefs, commands: tuple[str, ...]) -> str:
        """Puts the held object into the target."""
        settled = self._settled(goal, known)
        targets = [settled] if settled else known.of_kind(goal.receptacle)
        if not targets:
            return _LOOK
        for name in sorted(targets, key=self._rank.__getitem__):
            if f"move {known.held} to {name}" in commands:
                return f"move {known.held} to {name}"
        return self._reach(known, self._nearest(known, targets))

    def _use_lamp(self, goal: Goal, known: Beliefs, commands: tuple[str, ...]) -> str:
        """Turns a lamp on, or goes to one, with the object in hand."""
        lamps = {lamp: place for lamp, place in known.lamps.items() if kind_of(lamp) == goal.lamp}
        for lamp in sorted(lamps):
            if lamp not in known.lit and f"use {lamp}" in commands:
                return f"use {lamp}"
        away = {lamp: place for lamp, place in lamps.items() if place not in known.here}
        if away:
            lamp = min(away, key=lambda name: (name not in known.lit, self._rank[away[name]], name))
            return f"go to {away[lamp]}"
        unseen = [name for name in known.places if name not in known.lampless and name not in known.here]
        if not unseen:
            known.lampless.clear()
            return _LOOK
        best = min(unseen, key=lambda name: (kind_of(name) not in _LAMP_PLACES, self._rank[name]))
        return f"go to {best}"


_DOORS = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
_LAMP_PLACES = frozenset({"desk", "sidetable", "dresser", "shelf", "diningtable", "coffeetable"})
