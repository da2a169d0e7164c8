"""The fewest moves to the goal from every state of a room, by search from the solved ones."""

import functools
from collections.abc import Iterator

from gigpo_jax.envs.sokoban.engine.room import (
    BOX,
    BOX_ON_TARGET,
    PLAYER,
    PLAYER_ON_TARGET,
    TARGET,
    WALL,
    remove_pieces,
)

State = tuple[int, tuple[int, ...]]  # cell of the player, cells of the boxes in ascending order


def find_distances(cells: bytes, width: int) -> dict[State, int]:
    """Finds the fewest moves from every solvable state.

    Args:
      cells: Room row by row, with as many boxes as targets.
      width: Cells of a row.

    Returns:
      State -> moves; a state that cannot be solved is absent.
    """
    return _search_backwards(remove_pieces(cells), width)


def find_state(cells: bytes) -> State:
    """Player and boxes of a room."""
    player = next(cell for cell, code in enumerate(cells) if code in (PLAYER, PLAYER_ON_TARGET))
    boxes = tuple(cell for cell, code in enumerate(cells) if code in (BOX, BOX_ON_TARGET))
    return player, boxes


def move_player(cells: bytes, state: State, offset: int) -> State:
    """The state after a move.

    Args:
      cells: Room; only its walls count.
      state: State before the move.
      offset: Difference of the player's cells.

    Returns:
      The same state if something is in the way.
    """
    player, boxes = state
    front = player + offset
    if cells[front] == WALL:
        return state
    if front in boxes:
        pushed_box = front + offset
        # Two boxes in a row cannot be pushed.
        if cells[pushed_box] == WALL or pushed_box in boxes:
            return state
        boxes = tuple(sorted(pushed_box if box == front else box for box in boxes))
    return front, boxes


# The episodes of a group play the same room, and a search visits all its states.
@functools.lru_cache(maxsize=32)
def _search_backwards(fixed: bytes, width: int) -> dict[State, int]:
    free = {cell for cell, code in enumerate(fixed) if code != WALL}
    targets = tuple(cell for cell, code in enumerate(fixed) if code == TARGET)
    distances: dict[State, int] = {}
    for player in sorted(free.difference(targets)):
        distances[player, targets] = 0
    front = list(distances)
    length = 0
    while front:
        length += 1
        next_front = []
        for state in front:
            for predecessor in _list_predecessors(state, free, width):
                # Breadth first: the first visit has the fewest moves.
                if predecessor not in distances:
                    distances[predecessor] = length
                    next_front.append(predecessor)
        front = next_front
    return distances


def _list_predecessors(state: State, free: set[int], width: int) -> Iterator[State]:
    """The states from which one move leads to a state."""
    player, boxes = state
    for offset in (-width, width, -1, 1):
        origin = player - offset
        front = player + offset
        # The player must have stood there.
        if origin not in free or origin in boxes:
            continue
        yield origin, boxes
        if front in boxes:  # the move may have pushed this box there
            yield origin, tuple(sorted(player if box == front else box for box in boxes))
