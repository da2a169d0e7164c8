"""An expert for ALFWorld that uses observations alone.

It searches likely receptacles first, those without a door before others, in a random order
otherwise. It decides every step from its knowledge of the room, so it can continue from any state.
"""

import random

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs.alfworld.expert.beliefs import Beliefs, get_type
from gigpo_jax.envs.alfworld.expert.likely_places import is_likely
from gigpo_jax.envs.alfworld.phrases import parse_phrase
from gigpo_jax.envs.alfworld.tasks import Goal

_LOOK = "look"
_TYPES_WITH_DOOR = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
_LAMP_STANDS = frozenset({"desk", "sidetable", "dresser", "shelf", "diningtable", "coffeetable"})


class AlfworldExpert:
    """Plays one episode. The seed orders equally likely receptacles.

    Attributes:
      goal: Goal of the task; None before the start.
      beliefs: Knowledge of the room; None before the start.
    """

    def __init__(self, seed: int):
        self._rng = random.Random(f"alfworld expert {seed}")
        self._rank: dict[str, float] = {}
        self.goal: Goal | None = None
        self.beliefs: Beliefs | None = None

    def act(self, observation: Observation) -> str:
        """Returns the next command.

        Raises InputError if the task is not one of the templated phrases.
        """
        if self.beliefs is None or self.goal is None:
            self.goal = parse_phrase(observation.task)
            if self.goal is None:
                raise InputError(
                    "the expert does not know this wording",
                    key="task",
                    value=repr(observation.task),
                    fix="play templated games",
                )
            self.beliefs = Beliefs(observation.text)
            # One rank a receptacle: the order of the search does not change on the way.
            self._rank = {name: self._rng.random() for name in self.beliefs.receptacles}
        self.beliefs.update(observation)
        commands = observation.admissible or ()
        command = self._decide(self.goal, self.beliefs, commands)
        # Beliefs may be out of date, and an inadmissible command would do nothing.
        return command if command in commands or not commands else _LOOK

    def _decide(self, goal: Goal, beliefs: Beliefs, commands: tuple[str, ...]) -> str:
        if not beliefs.held:
            return self._fetch(goal, beliefs)
        # Only after commands that were not the expert's own, such as a demonstrator's errors.
        if get_type(beliefs.held) != goal.object:
            return self._discard_object(beliefs, commands)
        if goal.lamp:
            return self._use_lamp(goal, beliefs, commands)
        change = goal.change
        if change is not None and beliefs.held not in beliefs.changed[change.verb]:
            return self._change_object(change.verb, change.tool.lower(), beliefs, commands)
        return self._put_down(goal, beliefs, commands)

    @staticmethod
    def _count_steps(beliefs: Beliefs, name: str) -> int:
        """Counts the steps to reach and open a receptacle; doors never observed are closed."""
        # A door costs a step that an open shelf does not.
        is_closed = name in beliefs.closed
        if name not in beliefs.contents and get_type(name) in _TYPES_WITH_DOOR:
            is_closed = True
        return (name not in beliefs.here) + is_closed

    def _approach(self, beliefs: Beliefs, name: str) -> str:
        if name in beliefs.here and name in beliefs.closed:
            return f"open {name}"
        return f"go to {name}"

    def _fetch(self, goal: Goal, beliefs: Beliefs) -> str:
        """Takes an object of the task, or searches for one."""
        settled_receptacle = self._find_settled(goal, beliefs)
        candidates = []
        for thing, receptacle in beliefs.find_objects(goal.object):
            # Of two objects, one that is in its target must not be taken again.
            if receptacle == settled_receptacle:
                continue
            steps = self._count_steps(beliefs, receptacle)
            if goal.change is not None and thing not in beliefs.changed[goal.change.verb]:
                steps += 2  # a walk to the tool, and the change
            candidates.append((steps, self._rank[receptacle], thing, receptacle))
        if not candidates:
            return self._explore(goal.object, beliefs)
        # Fewest steps first; the rank decides between equal ones, so that seeds play differently.
        _, _, thing, receptacle = min(candidates)
        if self._count_steps(beliefs, receptacle) == 0:
            return f"take {thing} from {receptacle}"
        return self._approach(beliefs, receptacle)

    def _find_settled(self, goal: Goal, beliefs: Beliefs) -> str:
        """Finds the target that has one of both objects; "" if there is none."""
        if goal.count == 1:
            return ""
        counts = dict.fromkeys(beliefs.find_receptacles(goal.receptacle), 0)
        for _, receptacle in beliefs.find_objects(goal.object):
            if receptacle in counts:
                counts[receptacle] += 1
        return max(
            (name for name in counts if counts[name]),
            key=lambda name: (counts[name], self._rank[name]),
            default="",
        )

    def _explore(self, object_type: str, beliefs: Beliefs) -> str:
        """Searches the next receptacle for an object of a type."""
        unexplored = [name for name in beliefs.receptacles if name not in beliefs.contents]
        if not unexplored:
            # Somebody moved the object after its receptacle was observed: search everywhere again.
            for name in beliefs.receptacles:
                if name not in beliefs.here:
                    beliefs.contents.pop(name, None)
            unexplored = [name for name in beliefs.receptacles if name not in beliefs.contents]
        if not unexplored:
            return _LOOK

        def order(name: str) -> tuple[bool, int, float]:
            likely = is_likely(get_type(name), object_type)
            return not likely, self._count_steps(beliefs, name), self._rank[name]

        return self._approach(beliefs, min(unexplored, key=order))

    def _discard_object(self, beliefs: Beliefs, commands: tuple[str, ...]) -> str:
        """Puts down an object that the task does not need."""
        for command in commands:
            if command.startswith(f"move {beliefs.held} to "):
                return command
        # Nothing here takes the object. A closed receptacle may, once it is open.
        for name in sorted(beliefs.here, key=self._rank.__getitem__):
            if name in beliefs.closed and is_likely(get_type(name), get_type(beliefs.held)):
                return f"open {name}"
        # Its old place accepts it.
        origin = beliefs.origin.get(beliefs.held, "")
        if origin and origin not in beliefs.here:
            return f"go to {origin}"
        elsewhere = [name for name in beliefs.receptacles if name not in beliefs.here]
        return f"go to {self._find_nearest(beliefs, elsewhere)}" if elsewhere else _LOOK

    def _find_nearest(self, beliefs: Beliefs, receptacles: list[str]) -> str:
        """Finds the receptacle with fewest steps to reach and open."""
        return min(
            receptacles, key=lambda name: (self._count_steps(beliefs, name), self._rank[name])
        )

    def _change_object(
        self, verb: str, tool: str, beliefs: Beliefs, commands: tuple[str, ...]
    ) -> str:
        """Cleans, heats or cools the held object."""
        for command in commands:
            if command.startswith(f"{verb} {beliefs.held} with "):
                return command
        tools = [name for name in beliefs.find_receptacles(tool) if name not in beliefs.here]
        return f"go to {min(tools, key=self._rank.__getitem__)}" if tools else _LOOK

    def _put_down(self, goal: Goal, beliefs: Beliefs, commands: tuple[str, ...]) -> str:
        """Puts the held object into the target."""
        targets = beliefs.find_receptacles(goal.receptacle)
        settled_receptacle = self._find_settled(goal, beliefs)
        # Both objects must be in one receptacle: the second one goes where the first one is.
        if settled_receptacle:
            targets = [settled_receptacle]
        if not targets:
            return _LOOK
        for name in sorted(targets, key=self._rank.__getitem__):
            if f"move {beliefs.held} to {name}" in commands:
                return f"move {beliefs.held} to {name}"
        return self._approach(beliefs, self._find_nearest(beliefs, targets))

    def _use_lamp(self, goal: Goal, beliefs: Beliefs, commands: tuple[str, ...]) -> str:
        """With the object in hand, turns a lamp on, or goes to one."""
        lamps = [lamp for lamp in beliefs.lamps if get_type(lamp) == goal.lamp]
        for lamp in sorted(lamps):
            if lamp not in beliefs.lit and f"use {lamp}" in commands:
                return f"use {lamp}"
        candidates = []
        for lamp in lamps:
            receptacle = beliefs.lamps[lamp]
            if receptacle not in beliefs.here:
                # A lamp that is on already wins on arrival.
                candidates.append(
                    (lamp not in beliefs.lit, self._rank[receptacle], lamp, receptacle)
                )
        if candidates:
            return f"go to {min(candidates)[-1]}"
        return self._search_lamp(beliefs)

    def _search_lamp(self, beliefs: Beliefs) -> str:
        excluded = beliefs.lampless.union(beliefs.here)
        unexplored = [name for name in beliefs.receptacles if name not in excluded]
        if not unexplored:
            # Every place was tried, so one of the notes is wrong: the search begins again.
            beliefs.lampless.clear()
            return _LOOK

        def order(name: str) -> tuple[bool, float]:
            return get_type(name) not in _LAMP_STANDS, self._rank[name]

        return f"go to {min(unexplored, key=order)}"
