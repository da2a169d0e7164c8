"""Cards and tables as pictures, all drawn here."""

import functools
from collections.abc import Sequence

import numpy as np

from gigpo_jax.envs.drawing import PATCH, canvas, fill, grid, smooth, text_mask, write

_TABLE, _WHITE, _BLACK, _RED, _BACK = (36, 92, 70), (252, 252, 248), (18, 18, 22), (206, 28, 36), (40, 66, 150)
_LARGE, _SMALL = (112, 84), (76, 56)  # height and width of a card
_TEXT = 2  # scale of lines of text


def points_picture(cards: Sequence[str], formula: str) -> np.ndarray:
    """Cards in a row and the formula below; the end of one that is longer than two lines."""
    image = _points_table(tuple(cards)).copy()
    line, text = (image.shape[1] - 12) // (6 * _TEXT), f"Formula: {formula}"
    text = text if len(text) <= 2 * line else text[-2 * line :]
    for number in range(0, len(text), line):
        write(image, text[number : number + line], _TEXT, _WHITE, _TABLE, _LARGE[0] + 14 + 20 * (number // line), 8)
    return image


@functools.lru_cache(maxsize=64)
def _points_table(cards: Sequence[str]) -> np.ndarray:
    apart = _LARGE[1] + 14
    image = canvas(6 * PATCH, -(-len(cards) * apart // PATCH) * PATCH, _TABLE)
    for place, card in enumerate(cards):
        _put(image, _face(card, _LARGE), 8, 7 + place * apart)
    return image


def blackjack_picture(dealer: str, player: Sequence[str]) -> np.ndarray:
    """The dealer's open card and the back of the other, and the player's hand in two rows."""
    image = canvas(11 * PATCH, 11 * PATCH, _TABLE)
    write(image, "Dealer", _TEXT, _WHITE, _TABLE, 6, 6)
    _put(image, _face(dealer, _SMALL), 26, 6)
    _put(image, _card_back(_SMALL), 26, 66)
    write(image, "You", _TEXT, _WHITE, _TABLE, 116, 6)
    row = max(5, -(-len(player) // 2))
    for place, card in enumerate(player):
        down, right = divmod(place, row)
        _put(image, _face(card, _SMALL), 136 + 84 * down, 6 + right * 240 // (row - 1))
    return image


def numberline_picture(target: int, current: int) -> np.ndarray:
    """Two lines of large text on white."""
    white = (255, 255, 255)
    image = canvas(4 * PATCH, 9 * PATCH, white)
    for number, line in enumerate((f"Target: {target}", f"Current: {current}")):
        write(image, line, 4, _BLACK, white, 18 + 48 * number, 12)
    return image


def _put(image: np.ndarray, card: np.ndarray, top: int, left: int) -> None:
    image[top : top + card.shape[0], left : left + card.shape[1]] = card


@functools.cache
def _face(card: str, size: tuple[int, int]) -> np.ndarray:
    """The front of a card: rank and suit in two corners, the suit in the middle."""
    (height, width), colour = size, _RED if card[0] in "DH" else _BLACK
    image = _blank(size, _WHITE)
    rank = text_mask("10" if card[1] == "T" else card[1], width // 26)
    corner = np.zeros((height, width), np.float32)
    corner[6 : 6 + rank.shape[0], 6 : 6 + rank.shape[1]] = rank
    small = _suit(card[0], width // 5)
    top = 10 + rank.shape[0]
    corner[top : top + small.shape[0], 6 : 6 + small.shape[1]] = small
    fill(image, corner, colour)
    fill(image, corner[::-1, ::-1], colour)
    large = _suit(card[0], width // 2)
    fill(image, large, colour, (height - large.shape[0]) // 2, (width - large.shape[1]) // 2)
    return image


@functools.cache
def _card_back(size: tuple[int, int]) -> np.ndarray:
    image, (y, x) = _blank(size, _WHITE), grid(*size)
    inner = (np.minimum(y, size[0] - y) > 5) & (np.minimum(x, size[1] - x) > 5)
    fill(image, smooth(inner), _BACK)
    fill(image, smooth(inner & ((x + y) % 10 < 2.5)), _WHITE)
    return image


def _blank(size: tuple[int, int], colour: tuple[int, int, int]) -> np.ndarray:
    """A card with round corners and a thin edge, on the table."""
    image, (y, x) = canvas(*size, _TABLE), grid(*size)
    for inset, paint in ((0.0, _BLACK), (1.5, colour)):
        down, right = (
            np.maximum(abs(place - side / 2) - (side / 2 - 7), 0) for place, side in ((y, size[0]), (x, size[1]))
        )
        fill(image, smooth(np.hypot(down, right) < 7 - inset), paint)
    return image


@functools.cache
def _suit(suit: str, side: int) -> np.ndarray:
    """The mask of a suit's sign, float32 [side, side]."""
    y, x = (2 * place / side - 1 for place in grid(side, side))
    x = abs(x)
    if suit == "D":
        return smooth(x / 0.72 + abs(y) < 1)
    if suit == "C":
        leaves = (np.hypot(x, y + 0.5) < 0.46) | (np.hypot(x - 0.52, y - 0.18) < 0.46)
        return smooth(leaves | (x < 0.14) & (y > -0.4) & (y < 0.5) | _stem(y, x))
    down = -1.2 * (y + 0.2) if suit == "S" else y  # a spade is a heart upside down on a stem
    heart = (np.hypot(x - 0.45, down + 0.4) < 0.5) | (down > -0.26) & (x < 0.92 * (1 - (down + 0.14) / 1.12))
    return smooth(heart | _stem(y, x) if suit == "S" else heart)


def _stem(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    return (y > 0.3) & (y < 0.98) & (x < 0.08 + 0.38 * (y - 0.3) ** 2 / 0.46)
