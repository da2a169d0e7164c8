"""The fewest commands from any state of a game to its goal, from full knowledge of the room.

An agent carries one object and every command costs one step, so a shortest plan is an order of errands: put down what
is in the way, fetch an object, change it where the task asks for that, put it down. All choices of objects,
receptacles and tools are few enough to try.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import permutations

from gigpo_jax.envs.alfworld.engine import facts as f
from gigpo_jax.envs.alfworld.engine.game_file import GameFile


@dataclass(frozen=True)
class _Walk:
    """A plan under construction."""

    file: GameFile
    where: Mapping[int, int]  # object -> its receptacle
    opened: frozenset[int]  # receptacles that are open
    place: int  # of the agent
    hand: int | None  # the object in it; None if it is free
    length: int = 0  # commands so far

    def visit(self, receptacle: int, *, reach_in: bool = True) -> "_Walk":
        """Walks to a receptacle; to reach into it, it must be open."""
        place, opened = self.file.location[receptacle], self.opened
        length = self.length + (place != self.place)
        if reach_in and receptacle in self.file.openable and receptacle not in opened:
            length, opened = length + 1, opened | {receptacle}
        return replace(self, place=place, opened=opened, length=length)

    def put(self, receptacle: int) -> "_Walk":
        """Puts down what is in the hand."""
        assert self.hand is not None
        there = self.visit(receptacle)
        return replace(there, hand=None, where={**self.where, self.hand: receptacle}, length=there.length + 1)

    def fetch(self, thing: int) -> Iterator["_Walk"]:
        """Takes an object into the hand."""
        if self.hand == thing:
            yield self
        elif self.hand is not None:
            for receptacle in _accepting(self.file, self.hand):
                yield from self.put(receptacle).fetch(thing)
        elif thing in self.where and thing in self.file.pickupable:
            there = self.visit(self.where[thing])
            yield replace(there, hand=thing, length=there.length + 1)

    def change(self, tools: Collection[int]) -> Iterator["_Walk"]:
        """Uses one of the tools on what is in the hand."""
        for tool in tools & self.file.location.keys():
            there = self.visit(tool, reach_in=False)
            yield replace(there, length=there.length + 1)


def remaining(
    file: GameFile, state: Set[int], contents: Mapping[int, Sequence[int]], held: Sequence[int], place: int
) -> int | None:
    """The fewest commands that reach the goal.

    Args:
      state: the facts that hold.
      contents: receptacle -> objects in it.
      held: objects in the hand.
      place: of the agent.

    Returns:
      0 if the goal holds; None if more than one object is held, or no plan of these errands reaches it.
    """
    if file.goal.holds(state):
        return 0
    if len(held) > 1:
        return None
    start = _Walk(
        file=file,
        where={thing: receptacle for receptacle, things in contents.items() for thing in things},
        opened=frozenset(receptacle for receptacle in file.openable if f.code(f.OPENED, receptacle) in state),
        place=place,
        hand=held[0] if held else None,
    )
    first, *second = file.goal.needs
    walks = (
        _look(start, state, first, second[0]) if second else (w for term in first for w in _place(start, state, term))
    )
    return min((walk.length for walk in walks), default=None)


def _look(
    start: _Walk, state: Set[int], lit: Sequence[frozenset[int]], holding: Sequence[frozenset[int]]
) -> Iterator[_Walk]:
    """Fetches an object, walks to a lamp, and switches it on if it is not."""
    for (hold,) in holding:
        for walk in start.fetch(hold & f.MASK):
            for term in lit:
                by = {f.predicate_of(fact): fact for fact in term}
                if by[f.IN] not in state:  # lamps stay where they are
                    continue
                there = walk.visit(by[f.IN] & f.MASK, reach_in=False)
                if there.place == by[f.AT] & f.MASK:
                    yield replace(there, length=there.length + (by[f.TOGGLED] not in state))


def _place(start: _Walk, state: Set[int], term: frozenset[int]) -> Iterator[_Walk]:
    """Brings the objects of one alternative of the goal to their receptacle, in every order."""
    lacking = [fact for fact in term if fact not in state]
    tools = {_first(fact): _tools(start.file, fact) for fact in lacking if f.predicate_of(fact) != f.IN}
    target = next(fact & f.MASK for fact in term if f.predicate_of(fact) == f.IN)
    things = {_first(fact) for fact in lacking}
    if any(target not in start.file.accepts.get(thing, ()) for thing in things):
        return
    for order in permutations(sorted(things)):
        walks = [start]
        for thing in order:
            walks = [ready for walk in walks for ready in walk.fetch(thing)]
            if thing in tools:
                walks = [ready for walk in walks for ready in walk.change(tools[thing])]
            walks = [walk.put(target) for walk in walks]
        yield from walks


def _first(fact: int) -> int:
    return fact >> 20 & f.MASK


def _tools(file: GameFile, fact: int) -> frozenset[int]:
    return {f.IS_CLEAN: file.washers, f.IS_HOT: file.heaters, f.IS_COOL: file.coolers}[f.predicate_of(fact)]


def _accepting(file: GameFile, thing: int) -> Set[int]:
    """The receptacles that an object may be put into."""
    return file.accepts.get(thing, frozenset()) & file.location.keys()
