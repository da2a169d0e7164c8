"""A room as a picture: our own tiles of 28 x 28 pixels, one a cell."""

import functools

import numpy as np

from gigpo_jax.envs.drawing import PATCH, average_samples, fill, make_canvas, make_grid
from gigpo_jax.envs.sokoban.engine.room import (
    BOX,
    BOX_ON_TARGET,
    PLAYER,
    PLAYER_ON_TARGET,
    TARGET,
    WALL,
)

_GROUND = (24, 24, 30)
_BRICK = (168, 62, 40)
_MORTAR = (196, 178, 160)
_CRATE = (226, 182, 44)
_SLAT = (128, 82, 14)
_RED = (232, 40, 48)
_GREEN = (44, 190, 60)
_SKIN = (250, 214, 170)


def draw_room(room: np.ndarray) -> np.ndarray:
    """Draws a room of codes [H, W].

    Returns uint8 [28 H, 28 W, 3].
    """
    height, width = room.shape
    return _draw_tiles()[room].swapaxes(1, 2).reshape(height * PATCH, width * PATCH, 3)


@functools.cache
def _draw_tiles() -> np.ndarray:
    """A tile for each code, uint8 [7, 28, 28, 3]."""
    return np.stack([_draw_tile(code) for code in range(7)])


def _draw_tile(code: int) -> np.ndarray:
    tile = make_canvas(PATCH, PATCH, _GROUND)
    y, x = make_grid(PATCH, PATCH)
    middle = PATCH / 2
    if code == WALL:
        row = (y // 7).astype(int)
        # Every second row of bricks is shifted by half a brick.
        fill(tile, average_samples((y % 7 > 1.5) & ((x + 7 * (row % 2)) % 14 > 1.5)), _BRICK)
        fill(tile, average_samples((y % 7 <= 1.5) | ((x + 7 * (row % 2)) % 14 <= 1.5)), _MORTAR)
    if code in (TARGET, PLAYER_ON_TARGET):
        radius = np.hypot(y - middle, x - middle)
        fill(tile, average_samples((abs(radius - 10.5) < 2) | (radius < 3)), _RED)
    if code in (BOX, BOX_ON_TARGET):
        edge = np.maximum(abs(y - middle), abs(x - middle))
        fill(tile, average_samples(edge < 12.5), _RED if code == BOX_ON_TARGET else _SLAT)
        fill(tile, average_samples(edge < 9.5), _CRATE)
        fill(
            tile,
            average_samples((edge < 9.5) & (np.minimum(abs(y - x), abs(y + x - PATCH)) < 2)),
            _SLAT,
        )
    if code in (PLAYER, PLAYER_ON_TARGET):
        fill(tile, average_samples(np.hypot(y - 8, x - middle) < 4.5), _SKIN)
        fill(
            tile,
            average_samples((y >= 12) & (y < 21) & (abs(x - middle) < 3 + (y - 12) / 3)),
            _GREEN,
        )
        fill(tile, average_samples((y >= 13) & (y < 16) & (abs(x - middle) < 8)), _GREEN)
        fill(tile, average_samples((y >= 21) & (y < 26) & (abs(abs(x - middle) - 3) < 1.8)), _GREEN)
    return tile
