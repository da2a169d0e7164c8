"""Reads a `game.tw-pddl` into the tables of the engine.

Things are numbered in the order of their ids, which is the order of the official engine's lists.
"""

import json
import os
from collections import Counter
from collections.abc import Sequence, Set
from itertools import combinations
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.alfworld.engine import facts as f
from gigpo_jax.envs.alfworld.engine.known_rules import AGAIN, OFFICIAL, check_domain, split_task
from gigpo_jax.envs.alfworld.engine.pddl_goal import read_goal
from gigpo_jax.envs.alfworld.engine.pddl_problem import Problem, parse_problem
from gigpo_jax.envs.alfworld.tasks import Goal

Term = frozenset[int]  # facts that must hold together

KEYS = ("pddl_domain", "grammar", "pddl_problem")
MAX_BYTES = 64 << 20  # genuine games have under 1 MB


class GameFile:
    """Content of a game file, for any number of games, which share it as it never changes.

    Things are integers, see the module's docstring.

    Attributes:
      path: Path of the file.
      task: Task phrase.
      ids: Id of every thing.
      names: Display name of every thing, such as "mug 1".
      agent: The agent.
      start: Location where the agent begins.
      location: Receptacle -> its location.
      beside: Location -> its receptacles, in order.
      openable: Receptacles with a door.
      pickupable, toggleable, cleanable, heatable, coolable, sliceable: Objects with that property.
      knives: Objects that slice.
      vessels: Objects that are described by their content.
      inside: Vessel -> its objects, in order.
      washers, heaters, coolers: Receptacles that clean, heat, cool.
      accepts: Object -> receptacles it may be put into.
      contents: Receptacle -> its objects at the start, in order.
      held: Objects in the hand at the start.
      commands: Command -> (action, things), for every command made by `make_command` so far.
      state: Facts at the start that can change.
      goal: Condition under which the game is won.
    """

    def __init__(self, path: str, problem: Problem, task: str) -> None:
        self.path = path
        self.task = task
        # The official engine lists and numbers things in this order.
        self.ids = tuple(sorted(problem.kinds))
        self.names = _make_names(self.ids, problem)
        self._index = {thing: index for index, thing in enumerate(self.ids)}
        self._facts = problem.facts

        self.pickupable = self._select("pickupable")
        self.openable = self._select("openable")
        self.toggleable = self._select("toggleable")
        self.cleanable = self._select("cleanable")
        self.heatable = self._select("heatable")
        self.coolable = self._select("coolable")
        self.sliceable = self._select("sliceable")
        self.vessels = self._select("isreceptacleobject")
        self.agent, self.start = self._find_agent()
        self.location = self._read_locations()
        self.beside = self._group_by_location()
        self.washers = self._select_type("receptacletype", "sinkbasin")
        self.heaters = self._select_type("receptacletype", "microwave")
        self.coolers = self._select_type("receptacletype", "fridge")
        self.knives = self._select_type("objecttype", "knife") | self._select_type(
            "objecttype", "butterknife"
        )
        self.accepts = self._read_accepts()
        self.inside = self._group_by_container("inreceptacleobject")
        self.contents = self._group_by_container("inreceptacle")
        holds = self._facts.get("holds", ())
        self.held = tuple(sorted(self._index[thing] for _, thing in holds))
        self.state = self._encode_state()

        self.commands: dict[str, tuple[int, int, int]] = {}
        self._command_texts: dict[int, str] = {}
        self._go_commands: dict[int, tuple[str, ...]] = {}

        # After the tables: the condition below is made of their objects and receptacles.
        goal = read_goal(problem.goal)
        if goal is None:
            raise InputError(
                "the (:goal section is none of the six of ALFWorld's task types",
                key=path,
                fix=OFFICIAL,
            )
        self.goal = self._make_condition(goal)
        # Only construction reads these, and a worker keeps many games in its cache.
        del self._facts, self._index

    def _select(self, predicate: str) -> frozenset[int]:
        """The things of which a predicate with one argument holds."""
        return frozenset(self._index[thing] for (thing,) in self._facts.get(predicate, ()))

    def _select_type(self, predicate: str, name: str) -> frozenset[int]:
        """The things of a type."""
        pairs = self._facts.get(predicate, ())
        return frozenset(self._index[thing] for thing, kind in pairs if kind == f"{name}type")

    def _find_agent(self) -> tuple[int, int]:
        """The agent and its location."""
        pairs = list(self._facts.get("atlocation", ()))
        if len(pairs) != 1:
            raise InputError(
                f"(:init must say (atLocation agent place) once, it does {len(pairs)} times",
                key=self.path,
            )
        agent, place = pairs[0]
        return self._index[agent], self._index[place]

    def _read_locations(self) -> dict[int, int]:
        location: dict[int, int] = {}
        # Sorted: `location` and `beside` keep the order of ids, in which the official engine lists.
        for receptacle, place in sorted(self._facts.get("receptacleatlocation", ())):
            if self._index[receptacle] in location:
                raise InputError(
                    f"{receptacle!r} has two locations, the native engine supports one",
                    key=self.path,
                    fix=OFFICIAL,
                )
            location[self._index[receptacle]] = self._index[place]
        return location

    def _group_by_location(self) -> dict[int, tuple[int, ...]]:
        beside: dict[int, list[int]] = {}
        for receptacle, place in self.location.items():
            beside.setdefault(place, []).append(receptacle)
        return {place: tuple(receptacles) for place, receptacles in beside.items()}

    def _read_accepts(self) -> dict[int, frozenset[int]]:
        members: dict[str, set[int]] = {}
        for receptacle, kind in self._facts.get("receptacletype", ()):
            members.setdefault(kind, set()).add(self._index[receptacle])
        receptacles: dict[str, set[int]] = {}
        for receptacle_type, object_type in self._facts.get("cancontain", ()):
            # `cancontain` names all types of the domain; the room has only some of them.
            if receptacle_type in members:
                receptacles.setdefault(object_type, set()).update(members[receptacle_type])
        frozen = {kind: frozenset(indices) for kind, indices in receptacles.items()}
        accepts: dict[int, frozenset[int]] = {}
        for thing, kind in self._facts.get("objecttype", ()):
            index = self._index[thing]
            # An object of several types goes wherever one of them may.
            accepts[index] = accepts.get(index, frozenset()) | frozen.get(kind, frozenset())
        return accepts

    def _group_by_container(self, predicate: str) -> dict[int, tuple[int, ...]]:
        """Container -> its things, in order."""
        groups: dict[int, list[int]] = {}
        for thing, container in self._facts.get(predicate, ()):
            groups.setdefault(self._index[container], []).append(self._index[thing])
        return {container: tuple(sorted(things)) for container, things in groups.items()}

    def _encode_state(self) -> frozenset[int]:
        state: set[int] = set()
        for name, predicate in f.FLUENTS.items():
            for arguments in self._facts.get(name, ()):
                indices = [self._index[argument] for argument in arguments]
                state.add(f.encode_fact(predicate, *indices))
        return frozenset(state)

    def _make_condition(self, goal: Goal) -> "Condition":
        """Makes the goal's condition on the state.

        Raises InputError if it can never hold.
        """
        objects = sorted(self._select_type("objecttype", goal.object))
        if goal.lamp:
            needs = [self._make_lamp_terms(goal.lamp), self._make_holding_terms(objects)]
        else:
            needs = [self._make_placed_terms(goal, objects)]

        reachable_needs = []
        holdable = self._find_holdable()
        for terms in needs:
            reachable_terms = []
            for term in terms:
                if all(self._is_reachable(fact, holdable) for fact in term):
                    reachable_terms.append(term)
            # The official engine fails at load, too (KeyError 'val1'); here the message says why.
            if not reachable_terms:
                raise InputError("the goal cannot be reached", key=self.path, fix="remove the game")
            reachable_needs.append(tuple(reachable_terms))
        return Condition(tuple(reachable_needs))

    def _make_lamp_terms(self, lamp_type: str) -> list[Term]:
        """Makes terms for a lit lamp in a receptacle where the agent is."""
        # The goal asks for some receptacle with the lamp in it. Impossible pairs are dropped in
        # `_make_condition`.
        lamps = self._select_type("objecttype", lamp_type) & self.toggleable
        return [
            frozenset(
                (
                    f.encode_fact(f.TOGGLED, lamp),
                    f.encode_fact(f.IN, lamp, receptacle),
                    f.encode_fact(f.AT, self.agent, place),
                )
            )
            for lamp in sorted(lamps)
            for receptacle, place in self.location.items()
        ]

    def _make_holding_terms(self, objects: Sequence[int]) -> list[Term]:
        return [frozenset((f.encode_fact(f.HOLDS, self.agent, thing),)) for thing in objects]

    def _make_placed_terms(self, goal: Goal, objects: Sequence[int]) -> list[Term]:
        """Makes terms for changed objects in the goal's receptacle."""
        receptacles = sorted(self._select_type("receptacletype", goal.receptacle))
        changeable = frozenset(objects)
        required_state = None
        if goal.change is not None:
            changeable, required_state = {
                "clean": (self.cleanable, f.IS_CLEAN),
                "heat": (self.heatable, f.IS_HOT),
                "cool": (self.coolable, f.IS_COOL),
            }[goal.change.verb]
        candidates = [thing for thing in objects if thing in changeable]
        terms = []
        for receptacle in receptacles:
            for things in combinations(candidates, goal.count):
                term = {f.encode_fact(f.IN, thing, receptacle) for thing in things}
                if required_state is not None:
                    term |= {f.encode_fact(required_state, thing) for thing in things}
                terms.append(frozenset(term))
        return terms

    def _find_holdable(self) -> frozenset[int]:
        """The objects that the agent can ever hold."""
        objects: set[int] = set()
        for receptacle in self.location:
            # An object in a receptacle without a location is out of reach for ever.
            objects.update(self.contents.get(receptacle, ()))
        return frozenset(objects) & self.pickupable | frozenset(self.held)

    def _is_reachable(self, fact: int, holdable: Set[int]) -> bool:
        """Tells whether a fact holds at first or could later, if no fact were ever deleted.

        This relaxation of planning may say yes for a fact that cannot be reached, but never no for
        one that can.
        """
        if fact in self.state:
            return True
        predicate = f.get_predicate(fact)
        thing = f.get_first(fact)
        # Goals name locations of receptacles, and a receptacle can always be walked to.
        if predicate == f.AT:
            return True
        if predicate == f.HOLDS:
            return f.get_second(fact) in holdable
        receptacles: frozenset[int] = frozenset()
        if thing in holdable:
            receptacles = self.accepts.get(thing, frozenset()) & self.location.keys()
        if predicate == f.IN:
            return f.get_second(fact) in receptacles
        if predicate == f.TOGGLED:
            if receptacles:
                return True
            return any(thing in self.contents.get(place, ()) for place in self.location)
        # What remains is clean, hot and cool: the object is held at a tool that stands somewhere.
        return thing in holdable and not self.find_tools(predicate).isdisjoint(self.location)

    def find_tools(self, predicate: int) -> frozenset[int]:
        """The receptacles that make an object clean, hot or cool."""
        if predicate == f.IS_CLEAN:
            return self.washers
        return self.heaters if predicate == f.IS_HOT else self.coolers

    def make_command(self, action: int, first: int, second: int = 0) -> str:
        """Writes an action on things; `commands` has it afterwards."""
        # Texts are made once: most commands of a state are also commands of the previous one.
        key = f.encode_fact(action, first, second)
        text = self._command_texts.get(key)
        if text is None:
            text = f.FORMATS[action].format(self.names[first], self.names[second])
            self._command_texts[key] = text
            self.commands[text] = (action, first, second)
        return text

    def list_go_commands(self, place: int) -> tuple[str, ...]:
        """Lists the sorted "go to" commands at a location, one for each receptacle elsewhere."""
        commands = self._go_commands.get(place)
        if commands is None:
            receptacles = [
                receptacle for receptacle, location in self.location.items() if location != place
            ]
            texts = [self.make_command(f.GO, receptacle) for receptacle in receptacles]
            commands = tuple(sorted(texts))
            self._go_commands[place] = commands
        return commands


class Condition:
    """A goal: needs that must all be met.

    Attributes:
      needs: Alternatives of each need. A need is met if all facts of one alternative hold.
      predicates: Numbers of the predicates that the condition depends on.
    """

    def __init__(self, needs: tuple[tuple[Term, ...], ...]) -> None:
        self.needs = needs
        predicates: set[int] = set()
        for terms in needs:
            for term in terms:
                predicates.update(f.get_predicate(fact) for fact in term)
        self.predicates = frozenset(predicates)

    def holds(self, state: Set[int]) -> bool:
        return all(any(term <= state for term in terms) for terms in self.needs)


def _make_names(ids: tuple[str, ...], problem: Problem) -> tuple[str, ...]:
    """Makes the display names of things.

    A name is the id's first part and a number; the last id of a kind has number 1. As in the
    official engine, only things in some initial fact are counted, an id without a second part has
    no number, and an id with "basin" in it is a kind of its own.
    """
    mentioned = problem.mentioned
    numbers: Counter[str] = Counter()
    kinds: list[str] = []
    for thing in ids:
        kind, bar, _ = thing.partition("_bar_")
        if not bar:
            kind = ""
        elif "basin" in thing:
            kind += "basin"
        kinds.append(kind)
        if kind and thing in mentioned:
            numbers[kind] += 1
    names: list[str] = []
    for thing, kind in zip(ids, kinds):
        if thing not in mentioned:
            names.append("")
        elif kind:
            names.append(f"{kind} {numbers[kind]}")
            numbers[kind] -= 1
        else:
            # The blank is part of the name in the official engine.
            names.append(f"{thing} ")
    return tuple(names)


def load_game(path: str | os.PathLike[str]) -> GameFile:
    """Reads and checks one game.

    Args:
      path: A `game.tw-pddl`, or the folder that holds it.

    Raises:
      InputError: the file is broken, has another domain, grammar or kind of goal, or a goal that
        cannot be reached.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        name = os.path.join(name, "game.tw-pddl")
    game = _read_json(name)
    check_domain(game["pddl_domain"], name)
    task = split_task(game["grammar"], name)
    try:
        return GameFile(name, parse_problem(game["pddl_problem"], name), task)
    except RecursionError:
        raise InputError(
            "the (:goal section of 'pddl_problem' is nested too deep", key=name
        ) from None


def _read_json(name: str) -> dict[str, Any]:
    """Reads a game file with its size and form checked.

    Raises InputError if it is no JSON object with the texts of a game.
    """
    try:
        with open(name, "rb") as file:
            # One byte more than allowed: a size from `stat` could change until the file is read.
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"cannot read the game ({error.strerror})",
            key=name,
            fix="give the path of a game.tw-pddl",
        ) from None
    if len(content) > MAX_BYTES:
        raise InputError(f"no ALFWorld game is larger than {MAX_BYTES >> 20} MB", key=name)
    try:
        game = json.loads(content)
    except (ValueError, RecursionError):
        raise InputError("not JSON (cut or edited?)", key=name, fix=AGAIN) from None
    if not isinstance(game, dict):
        raise InputError("holds no JSON object", key=name, fix=AGAIN)
    for key in KEYS:
        if not isinstance(game.get(key), str):
            raise InputError(f"key {key!r} is missing or not a text", key=name, fix=AGAIN)
    return game
