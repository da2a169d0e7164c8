"""Makes a game's tables from the PDDL of its file."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import combinations
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.alfworld.engine import facts as f
from gigpo_jax.envs.alfworld.engine.game_file import Condition, GameFile, Term
from gigpo_jax.envs.alfworld.engine.known_rules import AGAIN, OFFICIAL, check_domain, split_task
from gigpo_jax.envs.alfworld.engine.pddl_goal import read_goal
from gigpo_jax.envs.alfworld.engine.pddl_problem import Problem, parse_problem
from gigpo_jax.envs.alfworld.engine.remaining import find_tools
from gigpo_jax.envs.alfworld.tasks import Goal

# PDDL name -> number of the predicates that can change. No rule and no text tests CHECKED and ISON.
_FLUENTS = {
    "atlocation": f.AT,
    "objectatlocation": f.OBJECT_AT,
    "opened": f.OPENED,
    "inreceptacle": f.IN,
    "holds": f.HOLDS,
    "holdsany": f.HOLDS_ANY,
    "isclean": f.IS_CLEAN,
    "ishot": f.IS_HOT,
    "iscool": f.IS_COOL,
    "istoggled": f.TOGGLED,
    "issliced": f.SLICED,
}

_KEYS = ("pddl_domain", "grammar", "pddl_problem")


def read_game(content: bytes, path: str) -> GameFile:
    """Reads and checks a game.

    Args:
      content: Bytes of its `game.tw-pddl`.
      path: Path of the file, for messages.

    Raises:
      InputError: the file is broken, has another domain, grammar or kind of goal, or a goal that
        cannot be reached.
    """
    texts = _read_json(content, path)
    check_domain(texts["pddl_domain"], path)
    task = split_task(texts["grammar"], path)
    try:
        problem = parse_problem(texts["pddl_problem"], path)
        reader = _ProblemReader(problem, path)
        game = reader.read_tables(task)
        goal = read_goal(problem.goal)
    except RecursionError:
        raise InputError(
            "the (:goal section of 'pddl_problem' is nested too deep", key=path
        ) from None
    if goal is None:
        raise InputError(
            "the (:goal section is none of the six of ALFWorld's task types", key=path, fix=OFFICIAL
        )
    objects = sorted(reader.select_type("objecttype", goal.object))
    if goal.lamp:
        lamps = reader.select_type("objecttype", goal.lamp) & game.toggleable
        needs = [_make_lamp_terms(game, lamps), _make_holding_terms(game, objects)]
    else:
        receptacles = reader.select_type("receptacletype", goal.receptacle)
        needs = [_make_placed_terms(game, goal, objects, sorted(receptacles))]
    return replace(game, goal=_make_condition(game, needs, path))


def _read_json(content: bytes, path: str) -> dict[str, Any]:
    """Reads the texts of a game; raises InputError if it is no JSON object with them."""
    try:
        game = json.loads(content)
    except (ValueError, RecursionError):
        raise InputError("not JSON (cut or edited?)", key=path, fix=AGAIN) from None
    if not isinstance(game, dict):
        raise InputError("holds no JSON object", key=path, fix=AGAIN)
    for key in _KEYS:
        if not isinstance(game.get(key), str):
            raise InputError(f"key {key!r} is missing or not a text", key=path, fix=AGAIN)
    return game


class _ProblemReader:
    """Reads the tables of a problem, whose things it numbers."""

    def __init__(self, problem: Problem, path: str) -> None:
        self._path = path
        # The official engine lists and numbers things in this order.
        ids = tuple(sorted(problem.kinds))
        self._names = _make_names(ids, problem)
        self._index = {thing: index for index, thing in enumerate(ids)}
        self._facts = problem.facts

    def read_tables(self, task: str) -> GameFile:
        """Reads all but the goal."""
        select = self._select
        agent, start = self._find_agent()
        location = self._read_locations()
        knives = ("knife", "butterknife")
        held = (self._index[thing] for _, thing in self._facts.get("holds", ()))
        return GameFile(
            task=task,
            names=self._names,
            agent=agent,
            start=start,
            location=location,
            beside=_group_by_location(location),
            openable=select("openable"),
            pickupable=select("pickupable"),
            toggleable=select("toggleable"),
            cleanable=select("cleanable"),
            heatable=select("heatable"),
            coolable=select("coolable"),
            sliceable=select("sliceable"),
            knives=frozenset().union(*(self.select_type("objecttype", name) for name in knives)),
            vessels=select("isreceptacleobject"),
            inside=self._group_by_container("inreceptacleobject"),
            washers=self.select_type("receptacletype", "sinkbasin"),
            heaters=self.select_type("receptacletype", "microwave"),
            coolers=self.select_type("receptacletype", "fridge"),
            accepts=self._read_accepts(),
            contents=self._group_by_container("inreceptacle"),
            held=tuple(sorted(held)),
            state=self._encode_state(),
            goal=Condition(()),
        )

    def _select(self, predicate: str) -> frozenset[int]:
        """The things of which a predicate with one argument holds."""
        return frozenset(self._index[thing] for (thing,) in self._facts.get(predicate, ()))

    def select_type(self, predicate: str, name: str) -> frozenset[int]:
        """The things of a type."""
        pairs = self._facts.get(predicate, ())
        return frozenset(self._index[thing] for thing, kind in pairs if kind == f"{name}type")

    def _find_agent(self) -> tuple[int, int]:
        """The agent and its location."""
        pairs = list(self._facts.get("atlocation", ()))
        if len(pairs) != 1:
            raise InputError(
                f"(:init must say (atLocation agent place) once, it does {len(pairs)} times",
                key=self._path,
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
                    key=self._path,
                    fix=OFFICIAL,
                )
            location[self._index[receptacle]] = self._index[place]
        return location

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
        for name, predicate in _FLUENTS.items():
            for arguments in self._facts.get(name, ()):
                indices = [self._index[argument] for argument in arguments]
                state.add(f.encode_fact(predicate, *indices))
        return frozenset(state)


def _group_by_location(location: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    beside: dict[int, list[int]] = {}
    for receptacle, place in location.items():
        beside.setdefault(place, []).append(receptacle)
    return {place: tuple(receptacles) for place, receptacles in beside.items()}


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


def _make_condition(game: GameFile, needs: Sequence[Sequence[Term]], path: str) -> Condition:
    """Makes the goal's condition on the state.

    Raises InputError if it can never hold.
    """
    reachable_needs = []
    holdable = _find_holdable(game)
    for terms in needs:
        reachable_terms = []
        for term in terms:
            if all(_is_reachable(game, fact, holdable) for fact in term):
                reachable_terms.append(term)
        # The official engine fails at load, too (KeyError 'val1'); here the message says why.
        if not reachable_terms:
            raise InputError("the goal cannot be reached", key=path, fix="remove the game")
        reachable_needs.append(tuple(reachable_terms))
    return Condition(tuple(reachable_needs))


def _make_lamp_terms(game: GameFile, lamps: Set[int]) -> list[Term]:
    """Makes terms for a lit lamp in a receptacle where the agent is."""
    # The goal asks for some receptacle with the lamp in it. Impossible pairs are dropped in
    # `_make_condition`.
    return [
        frozenset(
            (
                f.encode_fact(f.TOGGLED, lamp),
                f.encode_fact(f.IN, lamp, receptacle),
                f.encode_fact(f.AT, game.agent, place),
            )
        )
        for lamp in sorted(lamps)
        for receptacle, place in game.location.items()
    ]


def _make_holding_terms(game: GameFile, objects: Sequence[int]) -> list[Term]:
    return [frozenset((f.encode_fact(f.HOLDS, game.agent, thing),)) for thing in objects]


def _make_placed_terms(
    game: GameFile, goal: Goal, objects: Sequence[int], receptacles: Sequence[int]
) -> list[Term]:
    """Makes terms for changed objects in the goal's receptacle."""
    changeable = frozenset(objects)
    required_state = None
    if goal.change is not None:
        changeable, required_state = {
            "clean": (game.cleanable, f.IS_CLEAN),
            "heat": (game.heatable, f.IS_HOT),
            "cool": (game.coolable, f.IS_COOL),
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


def _find_holdable(game: GameFile) -> frozenset[int]:
    """The objects that the agent can ever hold."""
    objects: set[int] = set()
    for receptacle in game.location:
        # An object in a receptacle without a location is out of reach for ever.
        objects.update(game.contents.get(receptacle, ()))
    return frozenset(objects) & game.pickupable | frozenset(game.held)


def _is_reachable(game: GameFile, fact: int, holdable: Set[int]) -> bool:
    """Tells whether a fact holds at first or could later, if no fact were ever deleted.

    This relaxation of planning may say yes for a fact that cannot be reached, but never no for
    one that can.
    """
    if fact in game.state:
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
        receptacles = game.accepts.get(thing, frozenset()) & game.location.keys()
    if predicate == f.IN:
        return f.get_second(fact) in receptacles
    if predicate == f.TOGGLED:
        if receptacles:
            return True
        return any(thing in game.contents.get(place, ()) for place in game.location)
    # What remains is clean, hot and cool: the object is held at a tool that stands somewhere.
    return thing in holdable and not find_tools(game, predicate).isdisjoint(game.location)
