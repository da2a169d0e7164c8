"""The rules of Sokoban: a room, moves, pushes, rewards. Rules and rewards are those of gym-sokoban."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)
ACTIONS = ("still", "up", "down", "left", "right")  # 0 to 4
STEP_REWARD, BOX_REWARD, WON_REWARD = -0.1, 1.0, 10.0

Grid = Sequence[Sequence[int]] | np.ndarray


class RoomStep(NamedTuple):
    """What a step led to."""

    grid: np.ndarray  # [H, W] u8, the codes above
    reward: float
    done: bool
    won: bool


class Room:
    """One game.

    Attributes:
      width: cells of a row.
      won: whether all boxes stand on targets.
    """

    def __init__(self, grid: Grid, fixed: Grid, max_steps: int = 15) -> None:
        """Starts a game.

        Args:
          grid: [H, W] the room with boxes and player, codes 0 to 6; its border is wall.
          fixed: [H, W] the room without them, codes 0 to 2.
          max_steps: moves after which the game is over; action 0 does not count.
        """
        cells, ground = np.asarray(grid, np.uint8), np.asarray(fixed, np.uint8)
        inside = np.zeros(cells.shape, bool)
        inside[1:-1, 1:-1] = True
        if cells.shape != ground.shape or (ground[~inside] != WALL).any():
            raise ValueError("a room needs a grid and its fixed cells of one shape, with a border of walls")
        self.width, self._shape = cells.shape[1], cells.shape
        self._cells, self._fixed = bytearray(cells.tobytes()), ground.tobytes()
        (self._player,) = (place for place, code in enumerate(self._cells) if code in (PLAYER, PLAYER_ON_TARGET))
        self._moves = (0, -self.width, self.width, -1, 1)
        self._steps, self._max_steps = 0, max_steps
        self.won = BOX not in self._cells

    @property
    def cells(self) -> bytes:
        """The cells row by row."""
        return bytes(self._cells)

    @property
    def grid(self) -> np.ndarray:
        """[H, W] u8, a copy."""
        return np.frombuffer(self.cells, np.uint8).reshape(self._shape)

    def step(self, action: int) -> RoomStep:
        """Moves the player, and a box in front of it if the cell behind is free."""
        reward, done = self.move(action)
        return RoomStep(self.grid, reward, done, self.won)

    def move(self, action: int) -> tuple[float, bool]:
        """The same; returns reward and done only."""
        reward = STEP_REWARD
        if action:
            self._steps += 1
            cells, move = self._cells, self._moves[action]
            front = self._player + move
            if cells[front] in (BOX, BOX_ON_TARGET) and cells[front + move] in (FLOOR, TARGET):
                was_on, is_on = self._fixed[front] == TARGET, self._fixed[front + move] == TARGET
                cells[front + move] = BOX_ON_TARGET if is_on else BOX
                cells[front] = self._fixed[front]
                reward += BOX_REWARD * (is_on - was_on)
                self.won = BOX not in cells
                if self.won:
                    reward += WON_REWARD
            if cells[front] in (FLOOR, TARGET):
                cells[self._player] = self._fixed[self._player]
                cells[front] = PLAYER_ON_TARGET if self._fixed[front] == TARGET else PLAYER
                self._player = front
        return reward, self.won or self._steps >= self._max_steps
