"""Reads a `game.tw-pddl` into the tables that the engine plays from.

Things are numbered in the order of their ids, which is the order in which the official engine lists them; so a sorted
list of numbers is a list in the official order.
"""

import json
import os
from collections import Counter

from gigpo_jax.envs.alfworld.engine import facts as f
from gigpo_jax.envs.alfworld.engine.goal import Goal, compile_goal
from gigpo_jax.envs.alfworld.engine.problem import Problem, parse_problem
from gigpo_jax.envs.alfworld.engine.rules_check import check_domain, split_task
from gigpo_jax.errors import InputError

KEYS = ("pddl_domain", "grammar", "pddl_problem")
MAX_BYTES = 64 << 20  # genuine games have under 1 MB


class GameFile:
    """One game, as it stands in its file; never changed while it is played, so many `Game`s can share it.

    Attributes (things are integers, see the module text):
      path: the file. task: the task phrase. walkthrough: the commands stored in the file (may be empty).
      solvable: what the file says, None where it does not say.
      ids, names: id and shown name ("mug 1") of every thing.
      agent, start: the agent, and where it begins.
      location: receptacle -> where one stands before it. beside: location -> its receptacles, in order.
      openable ... sliceable: which receptacles and objects can be treated so. knives: what slices.
      vessels: objects that are described by what is inside them; inside: vessel -> its objects, in order.
      washers, heaters, coolers: receptacles that clean, heat, cool.
      accepts: object -> receptacles it may be put into.
      contents: receptacle -> its objects at the start, in order. held: objects in the hand at the start.
      commands: command -> (action, things) for every command that `command` has made so far.
      state: the facts at the start that can change. goal: when the game is won.
    """

    __slots__ = (
        "_texts",
        "_ways",
        "accepts",
        "agent",
        "beside",
        "cleanable",
        "commands",
        "contents",
        "coolable",
        "coolers",
        "goal",
        "heatable",
        "heaters",
        "held",
        "ids",
        "inside",
        "knives",
        "location",
        "names",
        "openable",
        "path",
        "pickupable",
        "sliceable",
        "solvable",
        "start",
        "state",
        "task",
        "toggleable",
        "vessels",
        "walkthrough",
        "washers",
    )

    def __init__(self, path: str, problem: Problem, task: str) -> None:
        self.path = path
        self.task = task
        self.walkthrough: tuple[str, ...] = ()
        self.solvable: bool | None = None
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
        self.goal: Goal = compile_goal(problem, number, self)

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
                    f"{self.path}: {receptacle!r} has two locations, our engine knows one a receptacle; "
                    'play this game with engine="official"'
                )
            self.location[number[receptacle]] = number[place]
            beside.setdefault(number[place], []).append(number[receptacle])
        self.beside = {place: tuple(receptacles) for place, receptacles in beside.items()}

    def _types(self, facts: dict[str, dict[tuple[str, ...], None]], number: dict[str, int]) -> None:
        """Fills what follows from the types: knives, washers, heaters, coolers, accepts."""
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

    def command(self, action: int, first: int, second: int = 0) -> str:
        """The text of a command, made once and then known to `commands`."""
        key = f.code(action, first, second)
        text = self._texts.get(key)
        if text is None:
            text = f.FORMATS[action].format(self.names[first], self.names[second])
            self._texts[key] = text
            self.commands[text] = (action, first, second)
        return text

    def ways(self, place: int) -> tuple[str, ...]:
        """The "go to" commands of a place, sorted: every receptacle that stands elsewhere."""
        ways = self._ways.get(place)
        if ways is None:
            elsewhere = (receptacle for receptacle, its in self.location.items() if its != place)
            ways = self._ways[place] = tuple(sorted(self.command(f.GO, receptacle) for receptacle in elsewhere))
        return ways


def _grouped(pairs: "dict[tuple[str, ...], None] | tuple[()]", number: dict[str, int]) -> dict[int, tuple[int, ...]]:
    """(inner, outer) pairs as outer -> its inner things, in order."""
    groups: dict[int, list[int]] = {}
    for inner, outer in pairs:
        groups.setdefault(number[outer], []).append(number[inner])
    return {outer: tuple(sorted(inner)) for outer, inner in groups.items()}


def _names(ids: tuple[str, ...], problem: Problem) -> tuple[str, ...]:
    """The shown names: the id's first part and a number, the last id of a name getting 1.

    Only things that some initial fact mentions are counted, an id without a second part gets no number, and one with
    "basin" in it is its own kind of thing: all as the official name maker does it.
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
      InputError: the file is missing, cut, edited into something that is no ALFWorld game, carries another domain or
        grammar, or has a goal that cannot be reached.
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
        raise InputError(f"{name}: larger than {MAX_BYTES >> 20} MB, this is no ALFWorld game")
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise InputError(f"{name}: not JSON (cut or edited?); make or download the game again") from None
    if not isinstance(data, dict):
        raise InputError(f"{name}: holds no JSON object; make or download the game again")
    for key in KEYS:
        if not isinstance(data.get(key), str):
            raise InputError(f"{name}: key {key!r} is missing or no text; make or download the game again")
    check_domain(data["pddl_domain"], name)
    task = split_task(data["grammar"], name)
    try:
        game = GameFile(name, parse_problem(data["pddl_problem"], name), task)
    except RecursionError:
        raise InputError(f"{name}: the (:goal section of 'pddl_problem' is nested too deep") from None
    walkthrough = data.get("walkthrough")
    if isinstance(walkthrough, list) and all(isinstance(command, str) for command in walkthrough):
        game.walkthrough = tuple(walkthrough)
    solvable = data.get("solvable")
    game.solvable = solvable if isinstance(solvable, bool) else None
    return game
