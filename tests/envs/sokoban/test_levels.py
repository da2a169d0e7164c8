"""Levels are solvable, and distances are those of a search that knows the rules alone."""

import random
from collections import deque

import numpy as np
import pytest

from gigpo_jax.envs.sokoban import Room
from gigpo_jax.envs.sokoban.data.levels import draw_level
from gigpo_jax.envs.sokoban.engine.distances import distances, state_of

GROUND = np.array((0, 1, 2, 2, 1, 1, 2))


def levels(number: int, size: int = 6, boxes: int = 1, depth: int = 30) -> list[np.ndarray]:
    drawn = (draw_level(random.Random(seed), size=size, boxes=boxes, depth=depth) for seed in range(number))
    return [np.frombuffer(cells, np.uint8).reshape(size, size) for cells in drawn if cells is not None]


def shortest(grid: np.ndarray) -> int:
    """The fewest moves to the goal, by playing all of them; -1 if there is no way."""
    seen, queue = {grid.tobytes()}, deque([(grid, 0)])
    while queue:
        now, length = queue.popleft()
        for action in (1, 2, 3, 4):
            after, _, _, won = Room(now, GROUND[grid]).step(action)
            if won:
                return length + 1
            if after.tobytes() not in seen:
                seen.add(after.tobytes())
                queue.append((after, length + 1))
    return -1


@pytest.mark.parametrize(("size", "boxes", "number"), [(6, 1, 40), (5, 2, 12), (7, 2, 4)])
def test_every_level_is_solvable_and_its_distance_is_the_shortest_solution(size: int, boxes: int, number: int) -> None:
    for grid in levels(number, size, boxes):
        assert np.isin(grid, (4,)).sum() == boxes
        assert np.isin(grid, (2, 6)).sum() == boxes
        assert np.isin(grid, (5, 6)).sum() == 1
        found = distances(grid.tobytes(), size)[state_of(grid.tobytes())]
        assert found == shortest(grid)


def test_a_box_in_a_corner_has_no_distance() -> None:
    corner = np.array([[0] * 5, [0, 4, 1, 1, 0], [0, 1, 5, 2, 0], [0] * 5], np.uint8)
    assert shortest(corner) == -1
    assert state_of(corner.tobytes()) not in distances(corner.tobytes(), 5)


def test_levels_are_as_hard_as_the_published_ones() -> None:
    """The published generator: shortest solutions of 4.05 moves on average, the 90th percentile is 7, none over 15."""
    lengths = [distances(grid.tobytes(), 6)[state_of(grid.tobytes())] for grid in levels(2000)]
    assert np.mean(lengths) == pytest.approx(4.05, abs=0.2)
    assert np.percentile(lengths, 90) == 7
    assert max(lengths) <= 15
    assert min(lengths) == 1
