"""The rules: equal to the public environment's, and what every move conserves."""

import random
from typing import Any

import numpy as np
import pytest

from gigpo_jax.envs.sokoban import Room
from tests.envs.transcripts import transcripts

WALLED = [[0] * 5, [0, 5, 4, 2, 0], [0] * 5]
GROUND = [[0] * 5, [0, 1, 1, 2, 0], [0] * 5]


@pytest.mark.parametrize("episode", transcripts("sokoban"), ids=lambda e: str(e["seed"]))
def test_every_transcript_is_reproduced(episode: dict[str, Any]) -> None:
    room = Room(episode["grid"], episode["fixed"])
    for step in episode["steps"]:
        outcome = room.step(step["action"])
        assert (outcome.reward, outcome.done, outcome.won) == (
            step["reward"],
            step["done"],
            step["won"],
        )
        assert outcome.grid.tolist() == step["grid"]


def test_transcripts_end_in_both_ways_and_have_actions_that_do_nothing() -> None:
    ends = {(e["steps"][-1]["won"], e["steps"][-1]["done"]) for e in transcripts("sokoban")}
    assert {(True, True), (False, True)} <= ends
    assert any(step["action"] == 0 for e in transcripts("sokoban") for step in e["steps"])


def test_rewards_on_and_off_a_target_and_of_the_last_push() -> None:
    room = Room(WALLED, GROUND)
    grid, reward, done, won = room.step(4)
    assert (reward, done, won) == (-0.1 + 1.0 + 10.0, True, True)
    assert grid.tolist()[1] == [0, 1, 5, 3, 0]
    two = Room([[0] * 6, [0, 5, 3, 1, 4, 0], [0] * 6], [[0] * 6, [0, 1, 2, 1, 2, 0], [0] * 6])
    outcome = two.step(4)
    assert (outcome.grid.tolist()[1], outcome.reward, outcome.won) == (
        [0, 1, 6, 4, 4, 0],
        -0.1 - 1.0,
        False,
    )
    line = [[0] * 7, [0, 5, 3, 2, 1, 4, 0], [0] * 7]
    between = Room(line, [[0] * 7, [0, 1, 2, 2, 1, 1, 0], [0] * 7])
    outcome = between.step(4)  # from one target to the next
    assert (outcome.grid.tolist()[1], outcome.reward) == ([0, 1, 6, 3, 1, 4, 0], -0.1)
    assert two.step(4).reward == -0.1  # two boxes in a row do not move
    assert two.grid[1].tolist() == [0, 1, 6, 4, 4, 0]


def test_moves_that_are_counted_end_the_game_and_others_do_not() -> None:
    room = Room(WALLED, GROUND, max_steps=2)
    assert [room.step(action).done for action in (0, 1, 0, 0, 1, 0)] == [
        False,
        False,
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_move_conserves_walls_boxes_and_targets_and_moves_one_cell_at_most(seed: int) -> None:
    rng = random.Random(seed)
    fixed = np.zeros((7, 8), int)
    fixed[1:-1, 1:-1] = np.array([rng.choice((0, 1, 1, 1, 2)) for _ in range(30)]).reshape(5, 6)
    free = list(zip(*np.nonzero(fixed)))
    places = rng.sample(free, 4)
    grid = fixed.copy()
    for place in places[:3]:
        grid[place] = 3 if fixed[place] == 2 else 4
    grid[places[3]] = 6 if fixed[places[3]] == 2 else 5
    room = Room(grid, fixed, max_steps=1000)
    for _ in range(200):
        previous_grid = room.grid
        next_grid = room.step(rng.randrange(5)).grid
        assert ((next_grid == 0) == (fixed == 0)).all()
        assert np.isin(next_grid, (3, 4)).sum() == 3
        assert np.isin(next_grid, (5, 6)).sum() == 1
        np.testing.assert_array_equal(np.isin(next_grid, (2, 3, 6)), fixed == 2)
        origin, destination = (
            np.argwhere(np.isin(now, (5, 6)))[0] for now in (previous_grid, next_grid)
        )
        assert np.abs(origin - destination).sum() <= 1
        assert np.isin(previous_grid != next_grid, True).sum() in (0, 2, 3)
        assert room.won == (not (next_grid == 4).any())


@pytest.mark.parametrize(
    ("grid", "fixed"),
    [
        ([[5, 4, 2]], [[1, 1, 2]]),
        (WALLED, GROUND[:2]),
        ([[0] * 5, [0, 1, 4, 2, 0], [0] * 5], GROUND),
        ([[0] * 5, [0, 5, 4, 5, 0], [0] * 5], GROUND),
    ],
)
def test_a_room_without_border_or_with_other_than_one_player_is_refused(
    grid: Any, fixed: Any
) -> None:
    with pytest.raises(ValueError, match=r"border of walls|values to unpack"):
        Room(grid, fixed)
