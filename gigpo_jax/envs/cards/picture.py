"""Cards and tables as pictures, all drawn here."""

import functools
from collections.abc import Sequence

import numpy as np

from gigpo_jax.envs.drawing import (
    PATCH,
    average_samples,
    fill,
    make_canvas,
    make_grid,
    make_text_mask,
    write_text,
)

_TABLE = (36, 92, 70)
_WHITE = (252, 252, 248)
_BLACK = (18, 18, 22)
_RED = (206, 28, 36)
_BACK = (40, 66, 150)
# Height and width of a card.
_LARGE = (112, 84)
_SMALL = (76, 56)
_TEXT_SCALE = 2


def draw_points_game(cards: Sequence[str], formula: str) -> np.ndarray:
    """Draws cards in a row and the formula below; of a formula over two lines, the end."""
    # A copy: the formula changes at every step, and the cached table must stay empty.
    image = _draw_points_table(tuple(cards)).copy()
    line_length = (image.shape[1] - 12) // (6 * _TEXT_SCALE)
    text = f"Formula: {formula}"
    # The end decides what comes next, and the picture keeps its size.
    text = text[max(0, len(text) - 2 * line_length) :]
    for start in range(0, len(text), line_length):
        line = text[start : start + line_length]
        top = _LARGE[0] + 14 + 20 * (start // line_length)
        write_text(image, line, _TEXT_SCALE, _WHITE, _TABLE, top, 8)
    return image


@functools.lru_cache(maxsize=64)
def _draw_points_table(cards: Sequence[str]) -> np.ndarray:
    spacing = _LARGE[1] + 14
    # Whole patches in both directions: the model then resizes nothing.
    patches = -(-len(cards) * spacing // PATCH)
    image = make_canvas(6 * PATCH, patches * PATCH, _TABLE)
    for index, card in enumerate(cards):
        _put_card(image, _draw_face(card, _LARGE), 8, 7 + index * spacing)
    return image


def draw_blackjack_game(dealer: str, player: Sequence[str]) -> np.ndarray:
    """Draws the dealer's two cards, one with its back, and the player's hand in two rows."""
    image = make_canvas(11 * PATCH, 11 * PATCH, _TABLE)
    write_text(image, "Dealer", _TEXT_SCALE, _WHITE, _TABLE, 6, 6)
    _put_card(image, _draw_face(dealer, _SMALL), 26, 6)
    _put_card(image, _draw_back(_SMALL), 26, 66)
    write_text(image, "You", _TEXT_SCALE, _WHITE, _TABLE, 116, 6)
    # Cards of a large hand overlap, so that the picture keeps its size.
    row_length = max(5, -(-len(player) // 2))
    for index, card in enumerate(player):
        row, column = divmod(index, row_length)
        # `row_length` is at least 5: no division by zero.
        offset = 6 + column * 240 // (row_length - 1)
        _put_card(image, _draw_face(card, _SMALL), 136 + 84 * row, offset)
    return image


def draw_numberline_game(target: int, current: int) -> np.ndarray:
    """Two lines of large text on white."""
    white = (255, 255, 255)
    image = make_canvas(4 * PATCH, 9 * PATCH, white)
    write_text(image, f"Target: {target}", 4, _BLACK, white, 18, 12)
    write_text(image, f"Current: {current}", 4, _BLACK, white, 66, 12)
    return image


def _put_card(image: np.ndarray, card: np.ndarray, top: int, left: int) -> None:
    image[top : top + card.shape[0], left : left + card.shape[1]] = card


@functools.cache
def _draw_face(card: str, size: tuple[int, int]) -> np.ndarray:
    """Draws the front of a card: rank and suit in two corners, the suit in the middle."""
    height, width = size
    suit = card[0]
    rank = card[1]
    colour = _RED if suit in "DH" else _BLACK
    image = _draw_blank(size, _WHITE)

    rank_mask = make_text_mask("10" if rank == "T" else rank, width // 26)
    corner = np.zeros((height, width), np.float32)
    corner[6 : 6 + rank_mask.shape[0], 6 : 6 + rank_mask.shape[1]] = rank_mask
    small_suit = _make_suit_mask(suit, width // 5)
    top = 10 + rank_mask.shape[0]
    corner[top : top + small_suit.shape[0], 6 : 6 + small_suit.shape[1]] = small_suit
    fill(image, corner, colour)
    # The opposite corner, upside down, as on a real card.
    fill(image, corner[::-1, ::-1], colour)

    large_suit = _make_suit_mask(suit, width // 2)
    suit_top = (height - large_suit.shape[0]) // 2
    suit_left = (width - large_suit.shape[1]) // 2
    fill(image, large_suit, colour, suit_top, suit_left)
    return image


@functools.cache
def _draw_back(size: tuple[int, int]) -> np.ndarray:
    """The back of a card: stripes in a frame."""
    height, width = size
    image = _draw_blank(size, _WHITE)
    y, x = make_grid(height, width)
    inside_frame = (np.minimum(y, height - y) > 5) & (np.minimum(x, width - x) > 5)
    fill(image, average_samples(inside_frame), _BACK)
    fill(image, average_samples(inside_frame & ((x + y) % 10 < 2.5)), _WHITE)
    return image


def _draw_blank(size: tuple[int, int], colour: tuple[int, int, int]) -> np.ndarray:
    """Draws a blank card with round corners and an edge, on the ground of the table."""
    height, width = size
    image = make_canvas(height, width, _TABLE)
    y, x = make_grid(height, width)
    # Distances from the rectangle of the corners' centres; the corners have a radius of 7 pixels.
    down = np.maximum(abs(y - height / 2) - (height / 2 - 7), 0)
    right = np.maximum(abs(x - width / 2) - (width / 2 - 7), 0)
    distance = np.hypot(down, right)
    fill(image, average_samples(distance < 7.0), _BLACK)
    fill(image, average_samples(distance < 5.5), colour)
    return image


@functools.cache
def _make_suit_mask(suit: str, side: int) -> np.ndarray:
    """The mask of a suit's sign, float32 [side, side]."""
    y, x = make_grid(side, side)
    y = 2 * y / side - 1  # from -1 to 1
    x = abs(2 * x / side - 1)  # the signs are symmetric
    if suit == "D":
        return average_samples(x / 0.72 + abs(y) < 1)
    if suit == "C":
        leaves = (np.hypot(x, y + 0.5) < 0.46) | (np.hypot(x - 0.52, y - 0.18) < 0.46)
        middle = (x < 0.14) & (y > -0.4) & (y < 0.5)
        return average_samples(leaves | middle | _make_stem(y, x))
    if suit == "S":  # a heart upside down, on a stem
        return average_samples(_make_heart(-1.2 * (y + 0.2), x) | _make_stem(y, x))
    return average_samples(_make_heart(y, x))


def _make_heart(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    lobes = np.hypot(x - 0.45, y + 0.4) < 0.5
    point = (y > -0.26) & (x < 0.92 * (1 - (y + 0.14) / 1.12))
    return lobes | point


def _make_stem(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    return (y > 0.3) & (y < 0.98) & (x < 0.08 + 0.38 * (y - 0.3) ** 2 / 0.46)
