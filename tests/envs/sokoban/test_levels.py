"""Levels are solvable, and distances equal those in a search that knows the rules alone."""

import random
from collections import deque
from typing import Any

import numpy as np
import pytest

from gigpo_jax.envs.sokoban import Room
from gigpo_jax.envs.sokoban.data.levels import _pull_boxes, draw_level
from gigpo_jax.envs.sokoban.engine.distances import find_distances, find_state

GROUND = np.array((0, 1, 2, 2, 1, 1, 2))


def levels(number: int, size: int = 6, boxes: int = 1, depth: int = 30) -> list[np.ndarray]:
    drawn = (
        draw_level(random.Random(seed), size=size, boxes=boxes, depth=depth)
        for seed in range(number)
    )
    return [
        np.frombuffer(cells, np.uint8).reshape(size, size) for cells in drawn if cells is not None
    ]


def shortest(grid: np.ndarray) -> int:
    """The fewest moves to the goal, by playing all of them; -1 if there is no way."""
    visited = {grid.tobytes()}
    queue = deque([(grid, 0)])
    while queue:
        room, length = queue.popleft()
        for action in (1, 2, 3, 4):
            next_grid, _, _, won = Room(room, GROUND[grid]).step(action)
            if won:
                return length + 1
            if next_grid.tobytes() not in visited:
                visited.add(next_grid.tobytes())
                queue.append((next_grid, length + 1))
    return -1


@pytest.mark.parametrize(("size", "boxes", "number"), [(6, 1, 40), (5, 2, 12), (7, 2, 4)])
def test_every_level_is_solvable_and_its_distance_is_the_shortest_solution(
    size: int, boxes: int, number: int
) -> None:
    for grid in levels(number, size, boxes):
        assert np.isin(grid, (4,)).sum() == boxes
        assert np.isin(grid, (2, 6)).sum() == boxes
        assert np.isin(grid, (5, 6)).sum() == 1
        distance = find_distances(grid.tobytes(), size)[find_state(grid.tobytes())]
        assert distance == shortest(grid)


def best_pulled(fixed: bytes, size: int, player: int, targets: tuple[int, ...], depth: int) -> Any:
    """The published search, as the recursion that it is described as."""
    best: Any = (0, None)
    visited = set()

    def visit(
        player: int, boxes: dict[int, int], changes: int, last: int | None, moves: int
    ) -> None:
        nonlocal best
        state = (player, frozenset(boxes.values()))
        if moves >= depth or state in visited:
            return
        visited.add(state)
        apart = [abs(t // size - b // size) + abs(t % size - b % size) for t, b in boxes.items()]
        covered = {player, *boxes.values()} & set(targets)
        score = 0 if covered else changes * sum(apart)
        if score > best[0]:
            best = (score, (player, tuple(boxes[target] for target in targets)))
        for move in (-size, size, -1, 1):
            if fixed[player + move] == 0 or player + move in boxes.values():
                continue
            pulled = next((t for t, box in boxes.items() if box == player - move), None)
            if pulled is None:
                visit(player + move, boxes, changes, last, moves + 1)
            else:
                visit(
                    player + move,
                    boxes | {pulled: player},
                    changes + (pulled != last),
                    pulled,
                    moves + 1,
                )

    visit(player, {target: target for target in targets}, 0, None, 0)
    return best[1]


@pytest.mark.parametrize("boxes", [1, 2, 3])
def test_boxes_are_pulled_as_published(boxes: int) -> None:
    rng = random.Random(boxes)
    for _ in range(60):
        fixed = bytearray(49)
        for row in range(1, 6):
            fixed[7 * row + 1 : 7 * row + 6] = bytes(rng.choices((0, 1), (1, 3), k=5))
        floor = [place for place, code in enumerate(fixed) if code]
        player, *targets = rng.sample(floor, boxes + 1)
        for target in targets:
            fixed[target] = 2
        depth = rng.choice((4, 9, 30))
        assert _pull_boxes(fixed, 7, player, tuple(targets), depth) == best_pulled(
            fixed, 7, player, tuple(targets), depth
        )


def test_a_box_in_a_corner_has_no_distance() -> None:
    corner = np.array([[0] * 5, [0, 4, 1, 1, 0], [0, 1, 5, 2, 0], [0] * 5], np.uint8)
    assert shortest(corner) == -1
    assert find_state(corner.tobytes()) not in find_distances(corner.tobytes(), 5)


def test_levels_are_as_hard_as_the_published_ones() -> None:
    """The published solutions: 4.05 moves on average, 90th percentile 7, none over 15."""
    lengths = [
        find_distances(grid.tobytes(), 6)[find_state(grid.tobytes())] for grid in levels(2000)
    ]
    assert np.mean(lengths) == pytest.approx(4.05, abs=0.2)
    assert np.percentile(lengths, 90) == 7
    assert max(lengths) <= 15
    assert min(lengths) == 1
