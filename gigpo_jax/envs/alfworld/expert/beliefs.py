"""An agent's knowledge of a room, from observations alone; the actions may be anyone's."""

import re

from gigpo_jax.env_bridge.types import Observation

_NAME = re.compile(r"\ban? (\w+ \d+)")
_SEEN = re.compile(r"(?:On the (\w+ \d+)|The (\w+ \d+) is open\. In it), you see ([^\n]*?)\.")
_TOOK = re.compile(r"You pick up the (\w+ \d+) from the (\w+ \d+)\.")
_PUT = re.compile(r"You move the (\w+ \d+) to the (\w+ \d+)\.")
_CHANGED = re.compile(r"You (clean|heat|cool) the (\w+ \d+) using the \w+ \d+\.")
_LIT = re.compile(r"You turn on the (\w+ \d+)\.")
_CARRYING = re.compile(r"You are (?:carrying: an? (\w+ \d+)|not carrying anything)\.")
_UNDOES = {"heat": "cool", "cool": "heat"}


def kind_of(name: str) -> str:
    """The type in a name: "mug" of "mug 2"."""
    return name.rpartition(" ")[0]


class Beliefs:
    """The known part of a room."""

    def __init__(self, first: str):
        listed = first.partition("you see")[2].partition("\n")[0]
        self.places: tuple[str, ...] = tuple(dict.fromkeys(_NAME.findall(listed)))  # in the order of the first text
        self.here: tuple[str, ...] = ()  # the places within reach
        self.closed: set[str] = set()  # the places known to be closed
        self.contents: dict[str, set[str]] = {}  # receptacle -> the objects last seen in it
        self.held = ""  # the object in hand, "" if none
        self.origin: dict[str, str] = {}  # object -> where it was last taken from
        self.changed: dict[str, set[str]] = {"clean": set(), "heat": set(), "cool": set()}
        self.lit: set[str] = set()  # lamps that were switched on
        self.lamps: dict[str, str] = {}  # lamp -> a receptacle from which it can be used
        self.lampless: set[str] = set()  # receptacles from which no lamp can be used

    def update(self, observation: Observation) -> None:
        self._read(observation.text)
        commands = observation.admissible or ()
        places = set(self.places)
        self.here = tuple(name for name in self.places if f"examine {name}" in commands)
        doors_shut = {name for name in self.here if f"open {name}" in commands}
        self.closed = (self.closed - set(self.here)) | doors_shut
        if not self.held:
            self._glance(commands, [name for name in self.here if name not in doors_shut])
        usable = [command.removeprefix("use ") for command in commands if command.startswith("use ")]
        for lamp in usable:
            if self.here and lamp not in places:
                self.lamps[lamp] = self.here[0]
        if not usable:
            self.lampless |= set(self.here)

    def _glance(self, commands: tuple[str, ...], within_reach: list[str]) -> None:
        """With empty hands, the admissible commands list all objects within reach."""
        for name in within_reach:
            kept = {thing for thing in self.contents.get(name, ()) if thing in self.lamps}
            self.contents[name] = kept
        for command in commands:
            if command.startswith("take "):
                thing, _, place = command.removeprefix("take ").partition(" from ")
                self.contents.setdefault(place, set()).add(thing)

    def _read(self, text: str) -> None:
        for on, inside, listed in _SEEN.findall(text):
            place = on or inside
            if place in self.places:
                self.contents[place] = set(_NAME.findall(listed))
        if found := _TOOK.fullmatch(text):
            thing, place = found.groups()
            self.held = thing
            self.origin[thing] = place
            self.contents.setdefault(place, set()).discard(thing)
        elif found := _PUT.fullmatch(text):
            thing, place = found.groups()
            self.held = ""
            self.contents.setdefault(place, set()).add(thing)
        elif found := _CHANGED.fullmatch(text):
            verb, thing = found.groups()
            self.changed[verb].add(thing)
            self.changed.get(_UNDOES.get(verb, ""), set()).discard(thing)
        elif found := _LIT.fullmatch(text):
            self.lit.add(found.group(1))
        elif found := _CARRYING.fullmatch(text):
            self.held = found.group(1) or ""

    def where(self, kind: str) -> list[tuple[str, str]]:
        return [
            (thing, place)
            for place in self.places
            for thing in sorted(self.contents.get(place, ()))
            if kind_of(thing) == kind
        ]

    def of_kind(self, kind: str) -> list[str]:
        """The receptacles of a type; in a room without that basin, the other basin (one floor plan names them so)."""
        named = [name for name in self.places if kind_of(name) == kind]
        return named or [name for name in self.places if kind.endswith("basin") and name.split()[0].endswith("basin")]
