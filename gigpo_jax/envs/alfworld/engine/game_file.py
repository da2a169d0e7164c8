"""Reads a `game.tw-pddl` into the tables of the engine.

Things are numbered in the order of their ids, which is the order of the official engine's lists.
"""

import json
import os
from collections import Counter
from collections.abc import Set
from itertools import combinations

from gigpo_jax.envs.alfworld.engine import facts as f
from gigpo_jax.envs.alfworld.engine.known_rules import check_domain, split_task
from gigpo_jax.envs.alfworld.engine.pddl_goal import read_goal
from gigpo_jax.envs.alfworld.engine.pddl_problem import Problem, parse_problem
from gigpo_jax.envs.alfworld.tasks import Goal
from gigpo_jax.errors import InputError

KEYS = ("pddl_domain", "grammar", "pddl_problem")
MAX_BYTES = 64 << 20  # genuine games have under 1 MB


class GameFile:
    """The content of a game file; never changed, so several `Game`s can share it.

    Attributes (things are integers, see the module text):
      path: the file. task: the task phrase. walkthrough: the commands stored in the file (may be empty).
      ids, names: id and shown name ("mug 1") of every thing.
      agent, start: the agent, and where it begins.
      location: receptacle -> its location. beside: location -> its receptacles, in order.
      openable ... sliceable: the receptacles or objects with that property. knives: the objects that slice.
      vessels: objects that are described by their content; inside: vessel -> its objects, in order.
      washers, heaters, coolers: receptacles that clean, heat, cool.
      accepts: object -> receptacles it may be put into.
      contents: receptacle -> its objects at the start, in order. held: objects in the hand at the start.
      commands: command -> (action, things), for every command made by `command` so far.
      state: the facts at the start that can change. goal: the condition under which the game is won.
    """

    def __init__(self, path: str, problem: Problem, task: str, walkthrough: tuple[str, ...]) -> None:
        self.path = path
        self.task = task
        self.walkthrough = walkthrough
        self.ids = tuple(sorted(problem.kinds))
        number = {thing: index for index, thing in enumerate(self.ids)}
        self.names = _names(self.ids, problem)
        facts = problem.facts

        def some(predicate: str) -> frozenset[int]:
            return frozenset(number[thing] for (thing,) in facts.get(predicate, ()))

        self.pickupable, self.openable, self.toggleable = some("pickupable"), some("openable"), some("toggleable")
        self.cleanable, self.heatable, self.coolable = some("cleanable"), some("heatable"), some("coolable")
        self.sliceable, self.vessels = some("sliceable"), some("isreceptacleobject")
        self.agent, self.start = self._agent(facts, number)
        self._places(facts, number)
        self._types(facts, number)
        self.inside: dict[int, tuple[int, ...]] = _grouped(facts.get("inreceptacleobject", ()), number)
        self.contents: dict[int, tuple[int, ...]] = _grouped(facts.get("inreceptacle", ()), number)
        self.held = tuple(sorted(number[thing] for _, thing in facts.get("holds", ())))
        self.state = frozenset(
            f.code(predicate, *(number[argument] for argument in arguments))
            for name, predicate in f.FLUENTS.items()
            for arguments in facts.get(name, ())
        )
        self.commands: dict[str, tuple[int, int, int]] = {}
        self._texts: dict[int, str] = {}
        self._ways: dict[int, tuple[str, ...]] = {}
        goal = read_goal(problem.goal)
        if goal is None:
            raise InputError(
                f"{path}: the (:goal section is none of the six of ALFWorld's task types; "
                'play this game with engine="official"'
            )
        self.goal = self._condition(goal, facts, number)

    def _agent(self, facts: dict[str, dict[tuple[str, ...], None]], number: dict[str, int]) -> tuple[int, int]:
        places = list(facts.get("atlocation", ()))
        if len(places) != 1:
            raise InputError(f"{self.path}: (:init must say (atLocation agent place) once, it does {len(places)} times")
        return number[places[0][0]], number[places[0][1]]

    def _places(self, facts: dict[str, dict[tuple[str, ...], None]], number: dict[str, int]) -> None:
        self.location: dict[int, int] = {}
        beside: dict[int, list[int]] = {}
        for receptacle, place in sorted(facts.get("receptacleatlocation", ())):
            if number[receptacle] in self.location:
                raise InputError(
                    f"{self.path}: {receptacle!r} has two locations, the native engine supports one; "
                    'play this game with engine="official"'
                )
            self.location[number[receptacle]] = number[place]
            beside.setdefault(number[place], []).append(number[receptacle])
        self.beside = {place: tuple(receptacles) for place, receptacles in beside.items()}

    def _types(self, facts: dict[str, dict[tuple[str, ...], None]], number: dict[str, int]) -> None:
        members: dict[str, set[int]] = {}
        for receptacle, kind in facts.get("receptacletype", ()):
            members.setdefault(kind, set()).add(number[receptacle])
        self.washers = frozenset(members.get("sinkbasintype", ()))
        self.heaters = frozenset(members.get("microwavetype", ()))
        self.coolers = frozenset(members.get("fridgetype", ()))
        takes: dict[str, set[int]] = {}
        for receptacle_type, object_type in facts.get("cancontain", ()):
            if receptacle_type in members:
                takes.setdefault(object_type, set()).update(members[receptacle_type])
        frozen = {kind: frozenset(receptacles) for kind, receptacles in takes.items()}
        self.accepts: dict[int, frozenset[int]] = {}
        knives = set()
        for thing, kind in facts.get("objecttype", ()):
            index = number[thing]
            self.accepts[index] = self.accepts.get(index, frozenset()) | frozen.get(kind, frozenset())
            if kind in ("knifetype", "butterknifetype"):
                knives.add(index)
        self.knives = frozenset(knives)

    def _condition(
        self, goal: Goal, facts: dict[str, dict[tuple[str, ...], None]], number: dict[str, int]
    ) -> "Condition":
        """The goal as a condition on the state; InputError if it can never hold."""

        def of_type(predicate: str, kind: str) -> list[int]:
            return sorted(number[thing] for thing, its in facts.get(predicate, ()) if its == f"{kind}type")

        objects, receptacles = of_type("objecttype", goal.object), of_type("receptacletype", goal.receptacle)
        needs: tuple[list[frozenset[int]], ...]
        if goal.lamp:
            lamps = [lamp for lamp in of_type("objecttype", goal.lamp) if lamp in self.toggleable]
            lit = [
                frozenset((f.code(f.TOGGLED, lamp), f.code(f.IN, lamp, where), f.code(f.AT, self.agent, place)))
                for lamp in lamps
                for where, place in self.location.items()
            ]
            needs = lit, [frozenset((f.code(f.HOLDS, self.agent, thing),)) for thing in objects]
        elif goal.count == 2:
            pairs = list(combinations(objects, 2))
            needs = ([frozenset(f.code(f.IN, o, r) for o in pair) for r in receptacles for pair in pairs],)
        else:
            able, changed = {
                "clean": (self.cleanable, [f.IS_CLEAN]),
                "heat": (self.heatable, [f.IS_HOT]),
                "cool": (self.coolable, [f.IS_COOL]),
            }.get(goal.change.verb if goal.change else "", (frozenset(objects), []))
            placed = [(thing, receptacle) for receptacle in receptacles for thing in objects if thing in able]
            needs = ([frozenset((f.code(f.IN, o, r), *(f.code(p, o) for p in changed))) for o, r in placed],)
        holdable = {o for r in self.location for o in self.contents.get(r, ())} & self.pickupable | set(self.held)
        reachable = tuple(
            tuple(term for term in terms if all(self._reachable(fact, holdable) for fact in term)) for terms in needs
        )
        if not all(reachable):
            raise InputError(f"{self.path}: the goal cannot be reached; remove the game")
        return Condition(reachable)

    def _reachable(self, fact: int, holdable: Set[int]) -> bool:
        """Whether a fact holds at the start or some action could add it, if no fact were ever deleted."""
        if fact in self.state:
            return True
        predicate, first, second = f.predicate_of(fact), fact >> 20 & f.MASK, fact & f.MASK
        if predicate == f.AT:
            return True
        if predicate == f.HOLDS:
            return second in holdable
        accepting = self.accepts.get(first, frozenset()) & self.location.keys() if first in holdable else frozenset()
        if predicate == f.IN:
            return second in accepting
        if predicate == f.TOGGLED:
            return bool(accepting) or any(first in self.contents.get(place, ()) for place in self.location)
        tools = {f.IS_CLEAN: self.washers, f.IS_HOT: self.heaters, f.IS_COOL: self.coolers}[predicate]
        return first in holdable and not tools.isdisjoint(self.location)

    def command(self, action: int, first: int, second: int = 0) -> str:
        key = f.code(action, first, second)
        text = self._texts.get(key)
        if text is None:
            text = f.FORMATS[action].format(self.names[first], self.names[second])
            self._texts[key] = text
            self.commands[text] = (action, first, second)
        return text

    def ways(self, place: int) -> tuple[str, ...]:
        """The "go to" commands at a location, sorted: to every receptacle elsewhere."""
        ways = self._ways.get(place)
        if ways is None:
            elsewhere = (receptacle for receptacle, its in self.location.items() if its != place)
            ways = self._ways[place] = tuple(sorted(self.command(f.GO, receptacle) for receptacle in elsewhere))
        return ways


class Condition:
    """Needs, each a tuple of alternatives, which are sets of fact numbers: all facts of one alternative must hold.

    `predicates` has the numbers of the predicates that it depends on.
    """

    def __init__(self, needs: tuple[tuple[frozenset[int], ...], ...]) -> None:
        self.needs = needs
        self.predicates = frozenset(f.predicate_of(fact) for terms in needs for term in terms for fact in term)

    def holds(self, state: Set[int]) -> bool:
        return all(any(term <= state for term in terms) for terms in self.needs)


def _grouped(pairs: "dict[tuple[str, ...], None] | tuple[()]", number: dict[str, int]) -> dict[int, tuple[int, ...]]:
    """(inner, outer) pairs as outer -> its inner things, in order."""
    groups: dict[int, list[int]] = {}
    for inner, outer in pairs:
        groups.setdefault(number[outer], []).append(number[inner])
    return {outer: tuple(sorted(inner)) for outer, inner in groups.items()}


def _names(ids: tuple[str, ...], problem: Problem) -> tuple[str, ...]:
    """The display names: the id's first part and a number; the last id of a kind has number 1.

    As in the official engine, only things in some initial fact are counted, an id without a second part has no number,
    and an id with "basin" in it is a kind of its own.
    """
    mentioned = problem.mentioned
    left: Counter[str] = Counter()
    kinds: list[str] = []
    for thing in ids:
        kind, bar, _ = thing.partition("_bar_")
        kind = kind + "basin" if bar and "basin" in thing else kind
        kinds.append(kind if bar else "")
        if bar and thing in mentioned:
            left[kind] += 1
    names: list[str] = []
    for thing, kind in zip(ids, kinds):
        if thing not in mentioned:
            names.append("")
        elif kind:
            names.append(f"{kind} {left[kind]}")
            left[kind] -= 1
        else:
            names.append(f"{thing} ")
    return tuple(names)


def load_game(path: str | os.PathLike[str]) -> GameFile:
    """Reads and checks one game.

    Args:
      path: a `game.tw-pddl`, or the folder that holds it.

    Raises:
      InputError: the file is broken, has another domain, grammar or kind of goal, or a goal that cannot be reached.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        name = os.path.join(name, "game.tw-pddl")
    try:
        with open(name, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{name}: cannot read the game ({error.strerror}); give the path of a game.tw-pddl") from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"{name}: larger than {MAX_BYTES >> 20} MB; not an ALFWorld game")
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise InputError(f"{name}: not JSON (cut or edited?); make or download the game again") from None
    if not isinstance(data, dict):
        raise InputError(f"{name}: holds no JSON object; make or download the game again")
    for key in KEYS:
        if not isinstance(data.get(key), str):
            raise InputError(f"{name}: key {key!r} is missing or not a text; make or download the game again")
    check_domain(data["pddl_domain"], name)
    task = split_task(data["grammar"], name)
    found = data.get("walkthrough")
    walkthrough = tuple(command for command in found if isinstance(command, str)) if isinstance(found, list) else ()
    try:
        return GameFile(name, parse_problem(data["pddl_problem"], name), task, walkthrough)
    except RecursionError:
        raise InputError(f"{name}: the (:goal section of 'pddl_problem' is nested too deep") from None
