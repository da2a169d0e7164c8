"""The rules of Sokoban: a room, moves, pushes, rewards, as in gym-sokoban."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)
ACTIONS = ("still", "up", "down", "left", "right")  # 0 to 4
STEP_REWARD = -0.1
BOX_REWARD = 1.0
WON_REWARD = 10.0
# Code of a cell -> code without box and player; a translation table of bytes.
_FIXED_CODES = bytes((WALL, FLOOR, TARGET, TARGET, FLOOR, FLOOR, TARGET)).ljust(256, b"\0")

Grid = Sequence[Sequence[int]] | np.ndarray


def remove_pieces(cells: bytes) -> bytes:
    """Returns a room's cells without boxes and player."""
    return cells.translate(_FIXED_CODES)


class RoomStep(NamedTuple):
    """The result of a step.

    Attributes:
      grid: Codes of the cells, [H, W] u8.
      reward: Reward of the step.
      done: Whether the game is over.
      won: Whether all boxes stand on targets.
    """

    grid: np.ndarray
    reward: float
    done: bool
    won: bool


class Room:
    """One game.

    Attributes:
      width: Cells of a row.
      won: Whether all boxes stand on targets.
    """

    def __init__(self, grid: Grid, fixed: Grid, max_steps: int = 15) -> None:
        """Starts a game.

        Args:
          grid: Room with boxes and player, [H, W], codes 0 to 6; its border is wall.
          fixed: Room without them, [H, W], codes 0 to 2.
          max_steps: Moves after which the game is over; action 0 does not count.
        """
        grid_cells = np.asarray(grid, np.uint8)
        fixed_cells = np.asarray(fixed, np.uint8)
        # Moves look one or two cells ahead without a test of bounds: the border makes that safe.
        border = np.ones(grid_cells.shape, bool)
        border[1:-1, 1:-1] = False
        if grid_cells.shape != fixed_cells.shape or (fixed_cells[border] != WALL).any():
            raise ValueError(
                "a room needs a grid and its fixed cells of one shape, with a border of walls"
            )
        self.width = grid_cells.shape[1]
        self._shape = grid_cells.shape
        self._cells = bytearray(grid_cells.tobytes())
        self._fixed = fixed_cells.tobytes()
        (self._player,) = (
            cell for cell, code in enumerate(self._cells) if code in (PLAYER, PLAYER_ON_TARGET)
        )
        self._offsets = (0, -self.width, self.width, -1, 1)
        self._steps = 0
        self._max_steps = max_steps
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
        """Moves the player, who pushes a box in front if the cell behind it is free."""
        reward, done = self.move(action)
        return RoomStep(self.grid, reward, done, self.won)

    def move(self, action: int) -> tuple[float, bool]:
        """Does as `step`, but returns only reward and done, which is faster."""
        reward = STEP_REWARD
        # As published: action 0 costs its reward, and is no counted step.
        if action:
            self._steps += 1
            offset = self._offsets[action]
            front = self._player + offset
            # A push frees the cell in front, and the player's own move below sees that.
            if self._can_push(front, front + offset):
                reward += BOX_REWARD * self._push_box(front, front + offset)
                if self.won:
                    reward += WON_REWARD
            if self._cells[front] in (FLOOR, TARGET):
                self._cells[self._player] = self._fixed[self._player]
                is_target = self._fixed[front] == TARGET
                self._cells[front] = PLAYER_ON_TARGET if is_target else PLAYER
                self._player = front
        return reward, self.won or self._steps >= self._max_steps

    def _can_push(self, origin: int, destination: int) -> bool:
        is_box = self._cells[origin] in (BOX, BOX_ON_TARGET)
        return is_box and self._cells[destination] in (FLOOR, TARGET)

    def _push_box(self, origin: int, destination: int) -> int:
        """Pushes a box; returns the change in the number of boxes on targets."""
        was_on_target = self._fixed[origin] == TARGET
        is_on_target = self._fixed[destination] == TARGET
        self._cells[destination] = BOX_ON_TARGET if is_on_target else BOX
        self._cells[origin] = self._fixed[origin]
        self.won = BOX not in self._cells
        return is_on_target - was_on_target
