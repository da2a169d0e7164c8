"""The fewest commands from any state of a game to its goal, from full knowledge of the room.

An agent carries one object and every command costs one step, so a shortest walk is an order of
errands: put down what is in the way, fetch an object, change it where the task asks for that, put
it down. All choices of objects, receptacles and tools are few enough to try.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import permutations

from gigpo_jax.envs.alfworld.engine import facts as f
from gigpo_jax.envs.alfworld.engine.game_file import GameFile, Term


@dataclass(frozen=True)
class _Walk:
    """A walk under construction.

    Attributes:
      file: Game.
      receptacles: Object -> its receptacle.
      opened: Open receptacles.
      place: Location of the agent.
      hand: Object in the hand; None if it is free.
      length: Number of commands so far.
    """

    file: GameFile
    receptacles: Mapping[int, int]
    opened: frozenset[int]
    place: int
    hand: int | None
    length: int = 0

    def visit(self, receptacle: int, *, reach_in: bool = True) -> "_Walk":
        """Walks to a receptacle; opens it to reach in."""
        place = self.file.location[receptacle]
        opened = self.opened
        length = self.length + (place != self.place)
        # A lamp or a tool is used without opening its receptacle.
        if reach_in and receptacle in self.file.openable and receptacle not in opened:
            opened |= {receptacle}
            length += 1
        return replace(self, place=place, opened=opened, length=length)

    def put_down(self, receptacle: int) -> "_Walk":
        assert self.hand is not None
        arrival = self.visit(receptacle)
        receptacles = {**self.receptacles, self.hand: receptacle}
        return replace(arrival, hand=None, receptacles=receptacles, length=arrival.length + 1)

    def fetch(self, thing: int) -> Iterator["_Walk"]:
        """Takes an object into the hand."""
        if self.hand == thing:
            yield self
        elif self.hand is not None:
            # Both hands are one: any other object must be put down first, wherever that is allowed.
            for receptacle in _list_accepting(self.file, self.hand):
                yield from self.put_down(receptacle).fetch(thing)
        elif thing in self.receptacles and thing in self.file.pickupable:
            arrival = self.visit(self.receptacles[thing])
            yield replace(arrival, hand=thing, length=arrival.length + 1)

    def use_tool(self, tools: Collection[int]) -> Iterator["_Walk"]:
        """Cleans, heats or cools the held object with one of the tools."""
        for tool in tools & self.file.location.keys():
            arrival = self.visit(tool, reach_in=False)
            yield replace(arrival, length=arrival.length + 1)


def count_remaining(
    file: GameFile,
    state: Set[int],
    contents: Mapping[int, Sequence[int]],
    held: Sequence[int],
    place: int,
) -> int | None:
    """The fewest commands that reach the goal.

    Args:
      file: Game.
      state: Facts that hold.
      contents: Receptacle -> objects in it.
      held: Objects in the hand.
      place: Location of the agent.

    Returns:
      0 if the goal holds. None if more than one object is held, or no walk of these errands reaches
      it.
    """
    if file.goal.holds(state):
        return 0
    if len(held) > 1:
        return None
    receptacles = {}
    for receptacle, things in contents.items():
        for thing in things:
            receptacles[thing] = receptacle
    opened = {
        receptacle for receptacle in file.openable if f.encode_fact(f.OPENED, receptacle) in state
    }
    start = _Walk(
        file=file,
        receptacles=receptacles,
        opened=frozenset(opened),
        place=place,
        hand=held[0] if held else None,
    )
    # All walks are tried: a room has few objects of the type, few targets and few tools.
    lengths = [walk.length for walk in _list_walks(start, state)]
    return min(lengths, default=None)


def _list_walks(start: _Walk, state: Set[int]) -> Iterator[_Walk]:
    """All walks that reach the goal."""
    needs = start.file.goal.needs
    if len(needs) == 2:
        lamp_terms, holding_terms = needs
        # Two needs exist only in this task type: a lit lamp here, and the object in the hand.
        yield from _look_walks(start, state, lamp_terms, holding_terms)
        return
    for term in needs[0]:
        yield from _placing_walks(start, state, term)


def _look_walks(
    start: _Walk, state: Set[int], lamp_terms: Sequence[Term], holding_terms: Sequence[Term]
) -> Iterator[_Walk]:
    """Fetches an object, goes to a lamp, and switches it on if it is off."""
    for (holding_fact,) in holding_terms:
        for walk in start.fetch(f.get_second(holding_fact)):
            for term in lamp_terms:
                facts = {f.get_predicate(fact): fact for fact in term}
                # The goal lists every lamp with every receptacle; only the lamp's own is real.
                if facts[f.IN] not in state:  # lamps stay where they are
                    continue
                arrival = walk.visit(f.get_second(facts[f.IN]), reach_in=False)
                if arrival.place == f.get_second(facts[f.AT]):
                    switching = facts[f.TOGGLED] not in state
                    yield replace(arrival, length=arrival.length + switching)


def _placing_walks(start: _Walk, state: Set[int], term: Term) -> Iterator[_Walk]:
    """Brings the objects of one alternative of the goal to their receptacle, in every order."""
    tools = {}
    things = set()
    target = -1
    for fact in term:
        thing = f.get_first(fact)
        predicate = f.get_predicate(fact)
        if predicate == f.IN:
            target = f.get_second(fact)
        # What holds already costs nothing, such as an object that is clean or in its place.
        if fact in state:
            continue
        things.add(thing)
        if predicate != f.IN:
            tools[thing] = find_tools(start.file, predicate)

    # A term names one receptacle, and the object may not be of a type that it accepts.
    if any(target not in start.file.accepts.get(thing, ()) for thing in things):
        return
    # Every order is tried, because walks between receptacles differ in length.
    for order in permutations(sorted(things)):
        walks = [start]
        for thing in order:
            walks = _bring(walks, thing, tools.get(thing), target)
        yield from walks


def _bring(
    walks: Sequence[_Walk], thing: int, tools: frozenset[int] | None, target: int
) -> list[_Walk]:
    """Continues walks by an object brought to the target, changed on the way if there are tools."""
    continued_walks = []
    for walk in walks:
        for fetching in walk.fetch(thing):
            changes = [fetching] if tools is None else fetching.use_tool(tools)
            continued_walks += [change.put_down(target) for change in changes]
    return continued_walks


def find_tools(file: GameFile, predicate: int) -> frozenset[int]:
    """The receptacles that make an object clean, hot or cool."""
    if predicate == f.IS_CLEAN:
        return file.washers
    return file.heaters if predicate == f.IS_HOT else file.coolers


def _list_accepting(file: GameFile, thing: int) -> Set[int]:
    """The receptacles that an object may be put into."""
    return file.accepts.get(thing, frozenset()) & file.location.keys()
