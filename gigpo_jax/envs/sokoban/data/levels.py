"""Draws rooms: a random walk carves them, then boxes are pulled away from their targets.

After the generator of gym-sokoban as the published GiGPO experiments use it: its masks,
probabilities and score. Every room is solvable, as pulls are pushes backwards.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gigpo_jax.envs.sokoban.engine.room import (
    BOX,
    BOX_ON_TARGET,
    FLOOR,
    PLAYER,
    PLAYER_ON_TARGET,
    TARGET,
    WALL,
)

_TURN_PROBABILITY = 0.35  # of the carving walk at a step
_MAX_STATES = 300_000  # of the search for a room
_HERE = (0, 0)
_NORTH = (-1, 0)
_SOUTH = (1, 0)
_WEST = (0, -1)
_EAST = (0, 1)
_DIRECTIONS = (_NORTH, _SOUTH, _WEST, _EAST)
# Shapes of floor that the walk stamps.
_MASKS = (
    (_WEST, _HERE, _EAST),
    (_NORTH, _HERE, _SOUTH),
    (_WEST, _HERE, _SOUTH),
    (_HERE, _WEST, (1, -1), _SOUTH),
    (_HERE, _EAST, _SOUTH),
)


class _Position(NamedTuple):
    """A state of the backward play.

    Attributes:
      player: Cell of the player.
      boxes: Cells of the boxes, in the order of their targets.
      changes: Number of pulls of another box than the one before.
      last_box: Index of the box that was pulled last; -1 for none.
      moves: Number of moves so far.
    """

    player: int
    boxes: tuple[int, ...]
    changes: int
    last_box: int
    moves: int


def draw_level(rng: random.Random, *, size: int, boxes: int, depth: int) -> bytes | None:
    """Draws a room.

    Args:
      rng: Random numbers; the room follows from them.
      size: Rows and columns, border included.
      boxes: Number of boxes and of targets.
      depth: Largest number of moves of the backward play.

    Returns:
      Cells row by row, [size * size] u8; None if this try gave no room.
    """
    fixed = _carve_floor(rng, size)
    floor = [cell for cell, code in enumerate(fixed) if code == FLOOR]
    # As published. The caller draws another room.
    if len(floor) <= boxes + 1:
        return None
    # One sample, so that player and targets are on different cells.
    player, *targets = rng.sample(floor, boxes + 1)
    for target in targets:
        fixed[target] = TARGET
    start = _pull_boxes(fixed, size, player, tuple(targets), depth)
    if start is None:
        return None
    player, box_cells = start
    cells = bytearray(fixed)
    for cell in box_cells:
        cells[cell] = BOX_ON_TARGET if fixed[cell] == TARGET else BOX
    # A room that one push would solve is made longer more often.
    distance = _sum_distances(size, box_cells, targets)
    player = _walk_player(rng, cells, size, player, 0.8 if distance == 1 else 0.5)
    cells[player] = PLAYER_ON_TARGET if fixed[player] == TARGET else PLAYER
    return bytes(cells)


def _sum_distances(size: int, boxes: Sequence[int], targets: Sequence[int]) -> int:
    """Sum of the Manhattan distances of boxes to their targets."""
    total = 0
    for box, target in zip(boxes, targets):
        total += abs(box // size - target // size) + abs(box % size - target % size)
    return total


def _carve_floor(rng: random.Random, size: int) -> bytearray:
    """Carves floor into walls along a random walk that stamps masks; the border stays wall."""
    cells = bytearray(size * size)
    last = size - 2
    # The last number is on the border, as published; the first step of the walk leaves it.
    row = rng.randint(1, size - 1)
    column = rng.randint(1, size - 1)
    direction = rng.choice(_DIRECTIONS)
    for _ in range(int(1.7 * 2 * size)):
        if rng.random() < _TURN_PROBABILITY:
            direction = rng.choice(_DIRECTIONS)
        row = min(max(row + direction[0], 1), last)
        column = min(max(column + direction[1], 1), last)
        for down, right in rng.choice(_MASKS):
            if 1 <= row + down <= last and 1 <= column + right <= last:
                cells[(row + down) * size + column + right] = FLOOR
    return cells


def _pull_boxes(
    fixed: bytearray, size: int, player: int, targets: tuple[int, ...], depth: int
) -> tuple[int, tuple[int, ...]] | None:
    """Plays backwards from the solved room, depth first.

    Returns:
      Player and boxes (in the order of their targets) of the first state with the best score: the
      distances of boxes to targets times the number of changes of the pulled box, 0 where player or
      box covers a target. None if no state scores.
    """
    best_start = None
    best_score = 0
    visited: set[tuple[int, tuple[int, ...]]] = set()
    stack = [_Position(player, targets, changes=0, last_box=-1, moves=0)]
    # The bound is the published one.
    while stack and len(visited) < _MAX_STATES:
        position = stack.pop()
        # Boxes are alike here: a state that exchanges two of them was searched already.
        key = (position.player, tuple(sorted(position.boxes)))
        if key in visited:
            continue
        visited.add(key)
        score = position.changes * _sum_distances(size, position.boxes, targets)
        # Strictly better: of equal scores the first one wins, as published.
        if score > best_score:
            occupied = {position.player, *position.boxes}
            if occupied.isdisjoint(targets):
                best_start = (position.player, position.boxes)
                best_score = score
        if position.moves + 1 < depth:
            stack += _list_pulls(fixed, size, position)
    return best_start


def _list_pulls(fixed: bytearray, size: int, position: _Position) -> Iterator[_Position]:
    """The positions after one backward move."""
    boxes = position.boxes
    moves = position.moves + 1
    for offset in (1, -1, size, -size):  # a stack: the published search tries the last one first
        front = position.player + offset
        back = position.player - offset
        if fixed[front] == WALL or front in boxes:
            continue
        if back not in boxes:
            yield _Position(front, boxes, position.changes, position.last_box, moves)
            continue
        index = boxes.index(back)
        pulled_boxes = (*boxes[:index], position.player, *boxes[index + 1 :])
        changes = position.changes + (index != position.last_box)
        yield _Position(front, pulled_boxes, changes, index, moves)


def _walk_player(
    rng: random.Random, cells: bytearray, size: int, player: int, probability: float
) -> int:
    """Walks the player up to three steps, with a probability of a first one; returns the cell."""
    visited = {player}
    continues = rng.random() < probability
    for _ in range(3):
        free = []
        for offset in (-size, size, -1, 1):
            cell = player + offset
            if cells[cell] in (FLOOR, TARGET) and cell not in visited:
                free.append(cell)
        if not continues or not free:
            break
        player = rng.choice(free)
        visited.add(player)
        continues = rng.random() < 0.5
    return player
