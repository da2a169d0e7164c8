"""The rules of FrozenLake, and its exact optimal values.

The rules and probabilities are as in Gymnasium's FrozenLake-v1 by default. A lake is lines of
letters: `S` start, `F` ice, `H` hole, `G` goal. Cells are numbered line by line.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# In the order of Gymnasium's numbers. Neighbours in it are at right angles to each other.
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
ACTIONS = tuple(MOVES)
SLIPS = (-1, 0, 1)  # on slippery ice each with probability 1/3, added to the action's number
ICE_PROBABILITY = 0.8  # of a cell that is neither the start nor the goal
Lake = Sequence[str]


class Transition(NamedTuple):
    """A possible result of an action."""

    probability: float
    cell: int
    reward: float
    is_over: bool


def draw_lake(rng: random.Random, size: int) -> tuple[str, ...] | None:
    """Draws a random lake of size x size cells; None if no path leads to the goal."""
    letters = ["F" if rng.random() < ICE_PROBABILITY else "H" for _ in range(size * size)]
    letters[0] = "S"
    letters[-1] = "G"
    text = "".join(letters)
    lake = tuple(text[start : start + size] for start in range(0, len(text), size))
    return lake if _has_path(lake) else None


def _has_path(lake: Lake) -> bool:
    cells = {0}
    # No shortest path is longer than the number of cells.
    for _ in range(len(lake) * len(lake[0])):
        open_cells = {cell for cell in cells if find_letter(lake, cell) != "H"}
        cells |= {move(lake, cell, number) for cell in open_cells for number in range(len(ACTIONS))}
    return len(lake) * len(lake[0]) - 1 in cells


def find_letter(lake: Lake, cell: int) -> str:
    """The letter of a cell."""
    row, column = divmod(cell, len(lake[0]))
    return lake[row][column]


def move(lake: Lake, cell: int, number: int) -> int:
    """Returns the cell after a move in direction `number` without a slip; walls stop the move."""
    row, column = divmod(cell, len(lake[0]))
    # A slip adds -1 or 1, so numbers wrap around.
    rows, columns = MOVES[ACTIONS[number % len(ACTIONS)]]
    next_row = min(max(row + rows, 0), len(lake) - 1)
    next_column = min(max(column + columns, 0), len(lake[0]) - 1)
    return next_row * len(lake[0]) + next_column


def list_transitions(lake: Lake, cell: int, number: int, *, is_slippery: bool) -> list[Transition]:
    """The possible results of an action in a cell."""
    if find_letter(lake, cell) in "HG":
        return [Transition(1.0, cell, 0.0, True)]
    slips = SLIPS if is_slippery else (0,)
    transitions = []
    for slip in slips:
        next_cell = move(lake, cell, number + slip)
        letter = find_letter(lake, next_cell)
        transitions.append(
            Transition(1.0 / len(slips), next_cell, float(letter == "G"), letter in "HG")
        )
    return transitions


def find_action_values(lake: Lake, *, is_slippery: bool, gamma: float) -> np.ndarray:
    """Computes the optimal values of actions, without a step limit, by value iteration.

    Args:
      lake: Lines of letters.
      is_slippery: Whether moves slip.
      gamma: Discount factor, below 1.

    Returns:
      [cells, 4] f64, in the order of `ACTIONS`; the error is below 1e-12.
    """
    cells = len(lake) * len(lake[0])
    transition = np.zeros((cells, len(ACTIONS), cells))
    reward = np.zeros((cells, len(ACTIONS)))
    for cell in range(cells):
        for number in range(len(ACTIONS)):
            for result in list_transitions(lake, cell, number, is_slippery=is_slippery):
                reward[cell, number] += result.probability * result.reward
                # The end of an episode has no value after it.
                if not result.is_over:
                    transition[cell, number, result.cell] += result.probability
    values = np.zeros((cells, len(ACTIONS)))
    # A last change of d leaves an error of at most d gamma / (1 - gamma).
    change = 1.0
    while change * gamma > 1e-12 * (1.0 - gamma):
        next_values = reward + gamma * transition @ values.max(axis=1)
        change = float(np.abs(next_values - values).max())
        values = next_values
    return values
