"""Draws rooms: carved by a random walk, then boxes are pulled away from their targets.

After the generator of gym-sokoban as the published GiGPO experiments use it: its masks, probabilities and score. Every
room is solvable, as pulls are pushes backwards.
"""

import random

from gigpo_jax.envs.sokoban.engine.room import BOX, BOX_ON_TARGET, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, WALL

_TURN = 0.35  # probability of a new direction at a step of the carving walk
_MOST_STATES = 300_000  # of the search for a room
_HERE, _N, _S, _W, _E = (0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)
_MASKS = ((_W, _HERE, _E), (_N, _HERE, _S), (_W, _HERE, _S), (_HERE, _W, (1, -1), _S), (_HERE, _E, _S))


def draw_level(rng: random.Random, *, size: int, boxes: int, depth: int) -> bytes | None:
    """The cells of a room row by row, [size * size] u8; None if this try gave no room."""
    fixed = _carve(rng, size)
    floor = [place for place, code in enumerate(fixed) if code == FLOOR]
    if len(floor) <= boxes + 1:
        return None
    player, *targets = rng.sample(floor, boxes + 1)
    for target in targets:
        fixed[target] = TARGET
    found = _pull(fixed, size, player, tuple(targets), depth)
    if found is None:
        return None
    player, stand = found
    cells = bytearray(fixed)
    for place in stand:
        cells[place] = BOX_ON_TARGET if fixed[place] == TARGET else BOX
    distance = sum(_distance(size, box, target) for box, target in zip(stand, targets))
    player = _stroll(rng, cells, size, player, 0.8 if distance == 1 else 0.5)
    cells[player] = PLAYER_ON_TARGET if fixed[player] == TARGET else PLAYER
    return bytes(cells)


def _distance(size: int, one: int, other: int) -> int:
    return abs(one // size - other // size) + abs(one % size - other % size)


def _carve(rng: random.Random, size: int) -> bytearray:
    """Floor and walls: a random walk stamps masks of floor; the border stays wall."""
    cells, last = bytearray(size * size), size - 2
    row, column, direction = rng.randint(1, size - 1), rng.randint(1, size - 1), rng.choice((_N, _S, _W, _E))
    for _ in range(int(1.7 * 2 * size)):
        if rng.random() < _TURN:
            direction = rng.choice((_N, _S, _W, _E))
        row = min(max(row + direction[0], 1), last)
        column = min(max(column + direction[1], 1), last)
        for down, right in rng.choice(_MASKS):
            if 1 <= row + down <= last and 1 <= column + right <= last:
                cells[(row + down) * size + column + right] = FLOOR
    return cells


def _pull(
    fixed: bytearray, size: int, player: int, targets: tuple[int, ...], depth: int
) -> tuple[int, tuple[int, ...]] | None:
    """Plays backwards from the solved room, depth first.

    Returns:
      Player and boxes (in the order of their targets) of the first state with the best score: the distances of boxes to
      targets times how often another box was pulled than before, 0 where player or box covers a target. None if no
      state scores.
    """
    best, best_score, seen = None, 0, set[tuple[int, tuple[int, ...]]]()
    stack = [(player, targets, 0, -1, 0)]  # the last two: the box pulled last, moves so far
    while stack and len(seen) < _MOST_STATES:
        player, boxes, changes, last, moves = stack.pop()
        key = (player, tuple(sorted(boxes)))
        if key in seen:
            continue
        seen.add(key)
        score = changes * sum(_distance(size, box, target) for box, target in zip(boxes, targets))
        if score > best_score and not any(target in boxes or target == player for target in targets):
            best, best_score = (player, boxes), score
        if moves + 1 >= depth:
            continue
        for move in (1, -1, size, -size):  # the last one is searched first
            ahead, behind = player + move, player - move
            if fixed[ahead] == WALL or ahead in boxes:
                continue
            if behind in boxes:
                pulled = boxes.index(behind)
                moved = (*boxes[:pulled], player, *boxes[pulled + 1 :])
                stack.append((ahead, moved, changes + (pulled != last), pulled, moves + 1))
            else:
                stack.append((ahead, boxes, changes, last, moves + 1))
    return best


def _stroll(rng: random.Random, cells: bytearray, size: int, player: int, share: float) -> int:
    """Where the player is after a walk of up to three steps, with probability `share`."""
    visited, go = {player}, rng.random() < share
    for _ in range(3):
        free = [player + move for move in (-size, size, -1, 1) if cells[player + move] in (FLOOR, TARGET)]
        free = [place for place in free if place not in visited]
        if not go or not free:
            break
        player = rng.choice(free)
        visited.add(player)
        go = rng.random() < 0.5
    return player
