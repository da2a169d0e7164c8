"""Variations of ALFWorld problems, with features that generated games lack."""

import random

from gigpo_jax.envs.alfworld.data.package import read_package
from gigpo_jax.envs.alfworld.engine.pddl_problem import Expression, parse_expression, parse_problem
from gigpo_jax.envs.alfworld.tasks import TASK_TYPES

# Properties of objects, as the rules write them.
PROPERTIES = (
    "ishot",
    "iscool",
    "isclean",
    "issliced",
    "istoggled",
    "ison",
    "toggleable",
    "sliceable",
)
OBJECT_TYPES = ["knifetype", "butterknifetype", "appletype", "mugtype"]
RECEPTACLE_TYPES = ["sinkbasintype", "microwavetype", "fridgetype"]
# Facts that generated games have of each thing.
COMMON_FACTS = (
    "pickupable",
    "inreceptacle",
    "objectatlocation",
    "objecttype",
    "receptacleatlocation",
)
ODD_NAMES = ("chair", "strangebasin_bar_1", "mug_bar_2_bar_3", "sink_bar_9_bar_sinkbasin")


class OddProblem:
    """A problem and its random changes.

    Attributes:
      kinds: Kind of each thing.
      facts: Tuples of each predicate, in order.
      goal: Formula.
    """

    def __init__(self, problem: str, rng: random.Random):
        parsed = parse_problem(problem, "base")
        self.kinds = dict(parsed.kinds)
        self.facts = {name: dict(tuples) for name, tuples in parsed.facts.items()}
        self.goal = parsed.goal
        self._rng = rng
        self._objects = self._things("object")
        self._receptacles = self._things("receptacle")
        self._agent = self._things("agent")[0]
        self._places = sorted({place for _, place in self.facts["receptacleatlocation"]})

    def _things(self, kind: str) -> list[str]:
        return [thing for thing in self.kinds if self.kinds[thing] == kind]

    def _add(self, name: str, *arguments: str) -> None:
        self.facts.setdefault(name, {})[arguments] = None

    def _some(self, things: list[str], most: int) -> list[str]:
        return self._rng.sample(things, self._rng.randint(0, min(most, len(things))))

    def share_locations(self) -> None:
        """Moves some receptacles to locations of others."""
        for receptacle in self._some(self._receptacles, 4):
            self.facts["receptacleatlocation"] = {
                (other, self._rng.choice(self._places) if other == receptacle else place): None
                for other, place in self.facts["receptacleatlocation"]
            }

    def repeat_objects(self) -> None:
        """Puts some objects into a second receptacle, often beside the first one."""
        location = {pair[0]: pair[1] for pair in self.facts["receptacleatlocation"]}
        for thing in self._some(self._objects, 4):
            homes = {
                location.get(receptacle)
                for inner, receptacle in self.facts["inreceptacle"]
                if inner == thing
            }
            beside = [other for other in self._receptacles if location.get(other) in homes]
            near = beside and self._rng.random() < 0.7
            home = self._rng.choice(beside if near else self._receptacles)
            self._add("inreceptacle", thing, home)

    def nest_objects(self) -> None:
        """Puts objects into objects, and some into themselves."""
        for thing in self._some(self._objects, 4):
            is_own = self._rng.random() < 0.2
            outer = thing if is_own else self._rng.choice(self._objects)
            self._add("inreceptacleobject", thing, outer)
            self._add("isreceptacleobject", self._rng.choice(self._objects))

    def open_things(self) -> None:
        """Opens receptacles, and objects, of which the rules do not speak."""
        for receptacle in self._some(self._receptacles, 4):
            self._add("opened", receptacle)
        for thing in self._some(self._objects, 2):
            self._add("openable", thing)
            self._add("opened", thing)

    def add_properties(self) -> None:
        """Adds properties, second types and locations to things."""
        for predicate in PROPERTIES:
            for thing in self._some(self._objects, 3):
                self._add(predicate, thing)
        for thing in self._some(self._objects, 3):
            self._add("objecttype", thing, self._rng.choice(OBJECT_TYPES))
        for receptacle in self._some(self._receptacles, 2):
            self._add("receptacletype", receptacle, self._rng.choice(RECEPTACLE_TYPES))
        for thing in self._some(self._objects, 3):
            self._add("objectatlocation", thing, self._rng.choice(self._places))

    def remove_facts(self) -> None:
        for predicate in COMMON_FACTS:
            tuples = self.facts[predicate]
            count = min(len(tuples), self._rng.randint(0, 2))
            for arguments in self._rng.sample(list(tuples), count):
                del tuples[arguments]

    def change_agent(self) -> None:
        """The agent starts elsewhere, or holds objects."""
        if self._rng.random() < 0.3:
            self.facts["atlocation"] = {(self._agent, self._rng.choice(self._places)): None}
        if self._rng.random() < 0.2:
            for thing in self._rng.sample(self._objects, self._rng.randint(1, 2)):
                self._add("holds", self._agent, thing)
            if self._rng.random() < 0.7:
                self._add("holdsany", self._agent)

    def add_odd_names(self) -> None:
        """Adds objects whose names look like templates or parts of other names."""
        for name in ODD_NAMES:
            self.kinds[name] = "object"
            if self._rng.random() < 0.5:
                self._add("objecttype", name, "mugtype")
                self._add("inreceptacle", name, self._rng.choice(self._receptacles))
                self._add("pickupable", name)

    def change_goal(self) -> None:
        """Keeps the goal, or takes the goal of any task type; many cannot be reached."""
        if self._rng.random() < 0.5:
            return
        objects, receptacles = (
            [name.removesuffix("type") for name in self._things(kind)]
            for kind in ("otype", "rtype")
        )
        template = read_package().goals[self._rng.choice(TASK_TYPES)]
        text = template.format(
            obj=self._rng.choice(objects),
            recep=self._rng.choice(receptacles),
            toggle=self._rng.choice(["desklamp", self._rng.choice(objects)]),
        )
        formula = parse_expression(text.lower())[1]
        assert isinstance(formula, list)
        self.goal = formula

    def render(self) -> str:
        """The text, with or without numbers."""
        distance = f"(distance {self._places[0]} {self._places[-1]})"
        numbers = f"(= (total-cost) 0)\n(= {distance} 22)"
        lines = ["(define (problem odd)", "(:domain alfred)", "(:objects"]
        lines += [f"{thing} - {kind}" for thing, kind in self.kinds.items()]
        lines += [")", "(:init", self._rng.choice(["", numbers])]
        lines += [
            f"({name} {' '.join(arguments)})"
            for name, tuples in self.facts.items()
            for arguments in tuples
        ]
        return "\n".join([*lines, ")", f"(:goal {_text(self.goal)})", ")"])


def _text(formula: Expression | str) -> str:
    return formula if isinstance(formula, str) else f"({' '.join(_text(term) for term in formula)})"


def odd_problem(problem: str, rng: random.Random) -> str:
    """A variation of a problem, with features that generated games lack."""
    odd = OddProblem(problem, rng)
    odd.share_locations()
    odd.repeat_objects()
    odd.nest_objects()
    odd.open_things()
    odd.add_properties()
    odd.remove_facts()
    odd.change_agent()
    odd.add_odd_names()
    odd.change_goal()
    return odd.render()
