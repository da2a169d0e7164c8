"""An agent's knowledge of a room, from observations alone; the actions may be anyone's."""

import re

from gigpo_jax.env_bridge.types import Observation

_NAME = re.compile(r"\ban? (\w+ \d+)")
_CONTENTS = re.compile(r"(?:On the (\w+ \d+)|The (\w+ \d+) is open\. In it), you see ([^\n]*?)\.")
_TAKE = re.compile(r"You pick up the (\w+ \d+) from the (\w+ \d+)\.")
_MOVE = re.compile(r"You move the (\w+ \d+) to the (\w+ \d+)\.")
_CHANGE = re.compile(r"You (clean|heat|cool) the (\w+ \d+) using the \w+ \d+\.")
_USE = re.compile(r"You turn on the (\w+ \d+)\.")
_INVENTORY = re.compile(r"You are (?:carrying: an? (\w+ \d+)|not carrying anything)\.")
_UNDONE_BY = {"heat": "cool", "cool": "heat"}


def get_type(name: str) -> str:
    """The type in a name: "mug" of "mug 2"."""
    return name.rpartition(" ")[0]


class Beliefs:
    """The observed part of a room.

    Attributes:
      receptacles: Receptacles in the order of the first text.
      here: Receptacles within reach.
      closed: Receptacles that were closed when last observed.
      contents: Receptacle -> objects last observed in it.
      held: Object in hand, "" if none.
      origin: Object -> receptacle from which it was last taken.
      changed: Verb of a change -> objects in that state.
      lit: Lamps that were switched on.
      lamps: Lamp -> receptacle at which it can be used.
      lampless: Receptacles at which no lamp can be used.
    """

    def __init__(self, first_text: str):
        # Only this text lists all receptacles of the room.
        listing = first_text.partition("you see")[2].partition("\n")[0]
        self.receptacles: tuple[str, ...] = tuple(dict.fromkeys(_NAME.findall(listing)))
        self.here: tuple[str, ...] = ()
        self.closed: set[str] = set()
        self.contents: dict[str, set[str]] = {}
        self.held = ""
        self.origin: dict[str, str] = {}
        self.changed: dict[str, set[str]] = {"clean": set(), "heat": set(), "cool": set()}
        self.lit: set[str] = set()
        self.lamps: dict[str, str] = {}
        self.lampless: set[str] = set()

    def update(self, observation: Observation) -> None:
        """Reads the text and the admissible commands of an observation."""
        self._read_text(observation.text)
        commands = observation.admissible or ()
        # Whatever is here can be examined: the only list of receptacles within reach.
        self.here = tuple(name for name in self.receptacles if f"examine {name}" in commands)
        closed_here = {name for name in self.here if f"open {name}" in commands}
        # What is elsewhere stays as it was observed last.
        self.closed = (self.closed - set(self.here)) | closed_here
        # With something in the hand nothing can be taken, and the list says nothing about contents.
        if not self.held:
            open_here = [name for name in self.here if name not in closed_here]
            self._read_take_commands(commands, open_here)
        self._read_use_commands(commands)

    def _read_take_commands(self, commands: tuple[str, ...], open_here: list[str]) -> None:
        """Learns the objects within reach, all of which "take" commands list if hands are empty."""
        # All but lamps, which cannot be taken: lamps of an earlier text are kept.
        for name in open_here:
            contents = self.contents.get(name, set())
            self.contents[name] = {thing for thing in contents if thing in self.lamps}
        for command in commands:
            if command.startswith("take "):
                thing, _, receptacle = command.removeprefix("take ").partition(" from ")
                self.contents.setdefault(receptacle, set()).add(thing)

    def _read_use_commands(self, commands: tuple[str, ...]) -> None:
        lamps = [command.removeprefix("use ") for command in commands if command.startswith("use ")]
        for lamp in lamps:
            if self.here and lamp not in self.receptacles:
                # Receptacles at one place share their lamps; the first one stands for the place.
                self.lamps[lamp] = self.here[0]
        if not lamps:
            self.lampless |= set(self.here)

    def _read_text(self, text: str) -> None:
        for surface, container, listing in _CONTENTS.findall(text):
            receptacle = surface or container
            if receptacle in self.receptacles:
                self.contents[receptacle] = set(_NAME.findall(listing))
        if match := _TAKE.fullmatch(text):
            thing, receptacle = match.groups()
            self.held = thing
            self.origin[thing] = receptacle
            self.contents.setdefault(receptacle, set()).discard(thing)
        elif match := _MOVE.fullmatch(text):
            thing, receptacle = match.groups()
            self.held = ""
            self.contents.setdefault(receptacle, set()).add(thing)
        elif match := _CHANGE.fullmatch(text):
            verb, thing = match.groups()
            self.changed[verb].add(thing)
            # A hot object that is cooled is not hot any more, and the reverse.
            if verb in _UNDONE_BY:
                self.changed[_UNDONE_BY[verb]].discard(thing)
        elif match := _USE.fullmatch(text):
            self.lit.add(match.group(1))
        elif match := _INVENTORY.fullmatch(text):
            self.held = match.group(1) or ""

    def describe(self) -> str:
        """Describes what is known, in one order, so that equal knowledge gives equal texts."""
        lines = [f"at {', '.join(self.here)}", f"holding {self.held}"]
        for receptacle in self.receptacles:
            if receptacle in self.closed:
                lines.append(f"{receptacle} closed")
            if receptacle in self.contents:
                contents = ", ".join(sorted(self.contents[receptacle]))
                lines.append(f"{receptacle} with {contents}")
        for verb, things in self.changed.items():
            lines += [f"{verb} {thing}" for thing in sorted(things)]
        lines += [f"lit {lamp}" for lamp in sorted(self.lit)]
        return "\n".join(lines)

    def find_objects(self, object_type: str) -> list[tuple[str, str]]:
        """The observed objects of a type, each with its receptacle."""
        pairs = []
        for receptacle in self.receptacles:
            for thing in sorted(self.contents.get(receptacle, ())):
                if get_type(thing) == object_type:
                    pairs.append((thing, receptacle))
        return pairs

    def find_receptacles(self, receptacle_type: str) -> list[str]:
        """The receptacles of a type."""
        receptacles = [name for name in self.receptacles if get_type(name) == receptacle_type]
        if receptacles or not receptacle_type.endswith("basin"):
            return receptacles
        # One floor plan names a basin by the other type, so any basin will do.
        return [name for name in self.receptacles if get_type(name).endswith("basin")]
