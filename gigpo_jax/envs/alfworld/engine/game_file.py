"""A game before it is played: tables of its things, and its goal.

Things are numbered in the order of their ids, which is the order of the official engine's lists.
"""

import hashlib
import json
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from gigpo_jax.envs.alfworld.engine import facts as f

Term = frozenset[int]  # facts that must hold together
VERSION = b"gigpo tables 1"  # raise it whenever the PDDL of a game gives other tables
# The attributes of `GameFile` that are sets, and those that map a thing to a tuple of things.
_SETS = (
    *("openable", "pickupable", "toggleable", "cleanable", "heatable", "coolable", "sliceable"),
    *("knives", "vessels", "washers", "heaters", "coolers", "state"),
)
_GROUPS = ("beside", "inside", "contents")


@dataclass(frozen=True)
class Condition:
    """A goal: needs that must all be met.

    Attributes:
      needs: Alternatives of each need. A need is met if all facts of one alternative hold.
    """

    needs: tuple[tuple[Term, ...], ...]

    def holds(self, state: Set[int]) -> bool:
        return all(any(term <= state for term in terms) for terms in self.needs)


@dataclass(frozen=True, eq=False)
class GameFile:
    """Content of a game file, for any number of games, which share it as it never changes.

    Things are integers, see the module's docstring.

    Attributes:
      task: Task phrase.
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
      state: Facts at the start that can change.
      goal: Condition under which the game is won.
      commands: Command -> (action, things), for every command made by `make_command` so far.
    """

    task: str
    names: tuple[str, ...]
    agent: int
    start: int
    location: dict[int, int]
    beside: dict[int, tuple[int, ...]]
    openable: frozenset[int]
    pickupable: frozenset[int]
    toggleable: frozenset[int]
    cleanable: frozenset[int]
    heatable: frozenset[int]
    coolable: frozenset[int]
    sliceable: frozenset[int]
    knives: frozenset[int]
    vessels: frozenset[int]
    inside: dict[int, tuple[int, ...]]
    washers: frozenset[int]
    heaters: frozenset[int]
    coolers: frozenset[int]
    accepts: dict[int, frozenset[int]]
    contents: dict[int, tuple[int, ...]]
    held: tuple[int, ...]
    state: frozenset[int]
    goal: Condition
    commands: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    _command_texts: dict[int, str] = field(default_factory=dict)
    _go_commands: dict[int, tuple[str, ...]] = field(default_factory=dict)

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


def format_tables(game: GameFile, content: bytes) -> bytes:
    """Writes the tables file of a game; `content` is its `game.tw-pddl`."""
    tables: dict[str, Any] = {
        "task": game.task,
        "names": game.names,
        "agent": game.agent,
        "start": game.start,
        "held": game.held,
        "location": list(game.location.items()),
        "accepts": [(thing, sorted(places)) for thing, places in game.accepts.items()],
        "needs": [[sorted(term) for term in terms] for terms in game.goal.needs],
        **{name: sorted(getattr(game, name)) for name in _SETS},
        **{name: list(getattr(game, name).items()) for name in _GROUPS},
    }
    text = json.dumps(tables).encode()
    return hash_files(content, text) + b"\n" + text


def parse_tables(text: bytes) -> GameFile:
    """Reads the tables of a game."""
    tables = json.loads(text)
    needs = tables.pop("needs")
    for name in _SETS:
        tables[name] = frozenset(tables[name])
    for name in _GROUPS:
        tables[name] = {thing: tuple(things) for thing, things in tables[name]}
    return GameFile(
        **tables
        | {
            "names": tuple(tables["names"]),
            "held": tuple(tables["held"]),
            "location": dict(tables["location"]),
            "accepts": {thing: frozenset(places) for thing, places in tables["accepts"]},
            "goal": Condition(tuple(tuple(map(frozenset, terms)) for terms in needs)),
        }
    )


def hash_files(content: bytes, tables: bytes) -> bytes:
    """Hashes a game and its tables."""
    digest = hashlib.blake2b(content, digest_size=16, person=VERSION)
    digest.update(tables)
    return digest.hexdigest().encode()
