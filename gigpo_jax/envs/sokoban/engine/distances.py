"""The fewest moves to the goal from every state of a room, by search backwards from the solved ones."""

import functools
import itertools
from collections.abc import Sequence

from gigpo_jax.envs.sokoban.engine.room import (
    BOX,
    BOX_ON_TARGET,
    FLOOR,
    PLAYER,
    PLAYER_ON_TARGET,
    TARGET,
    WALL,
)

State = tuple[int, tuple[int, ...]]  # the player's cell, the cells of the boxes in ascending order
# Code of a cell -> without box and player; a translation table of bytes.
_FIXED = bytes((WALL, FLOOR, TARGET, TARGET, FLOOR, FLOOR, TARGET)).ljust(256, b"\0")


def distances(cells: bytes, width: int) -> dict[State, int]:
    """The fewest moves from every state of a room that can still be solved; a state that is absent cannot.

    Args:
      cells: the room row by row, with as many boxes as targets.
      width: cells of a row.
    """
    return _distances(cells.translate(_FIXED), width)


def state_of(cells: bytes) -> State:
    """Player and boxes of a room."""
    player = next(place for place, code in enumerate(cells) if code in (PLAYER, PLAYER_ON_TARGET))
    return player, tuple(place for place, code in enumerate(cells) if code in (BOX, BOX_ON_TARGET))


def moved(cells: bytes, state: State, move: int) -> State:
    """The state after a move by `move` cells; the same if something is in the way."""
    player, boxes = state
    front = player + move
    if cells[front] == WALL:
        return state
    if front in boxes:
        if cells[front + move] == WALL or front + move in boxes:
            return state
        boxes = tuple(sorted(front + move if box == front else box for box in boxes))
    return front, boxes


@functools.lru_cache(maxsize=32)  # the episodes of a group play the same room
def _distances(fixed: bytes, width: int) -> dict[State, int]:
    free = {place for place, code in enumerate(fixed) if code != WALL}
    targets = tuple(place for place, code in enumerate(fixed) if code == TARGET)
    found: dict[State, int] = {(player, targets): 0 for player in sorted(free.difference(targets))}
    front: Sequence[State] = list(found)
    for length in itertools.count(1):
        if not front:
            return found
        ahead = []
        for player, boxes in front:
            for move in (-width, width, -1, 1):
                behind, pulled = player - move, player + move
                if behind not in free or behind in boxes:
                    continue
                before = [(behind, boxes)]
                if pulled in boxes:  # it may have been pushed there
                    before.append((behind, tuple(sorted(player if box == pulled else box for box in boxes))))
                for state in before:
                    if state not in found:
                        found[state] = length
                        ahead.append(state)
        front = ahead
    raise AssertionError  # the loop has no end
