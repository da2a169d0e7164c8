"""Shapes and characters as arrays: what the pictures of games are made of."""

import functools

import numpy as np

PATCH = 28  # pixels: sides that are multiples of it need no resizing for Qwen2.5-VL, one token a square
Colour = tuple[int, int, int]
_FINE = 4  # samples a pixel along each axis, so that edges are smooth

# 5 x 7 characters, drawn for this project: a row is a number whose bits are pixels, the left one highest.
_GLYPHS = {
    "0": (14, 17, 19, 21, 25, 17, 14),
    "1": (4, 12, 4, 4, 4, 4, 14),
    "2": (14, 17, 1, 2, 4, 8, 31),
    "3": (31, 2, 4, 2, 1, 17, 14),
    "4": (2, 6, 10, 18, 31, 2, 2),
    "5": (31, 16, 30, 1, 1, 17, 14),
    "6": (6, 8, 16, 30, 17, 17, 14),
    "7": (31, 1, 2, 4, 8, 8, 8),
    "8": (14, 17, 17, 14, 17, 17, 14),
    "9": (14, 17, 17, 15, 1, 2, 12),
    "A": (14, 17, 17, 31, 17, 17, 17),
    "J": (7, 2, 2, 2, 2, 18, 12),
    "Q": (14, 17, 17, 17, 21, 18, 13),
    "K": (17, 18, 20, 24, 20, 18, 17),
    "+": (0, 4, 4, 31, 4, 4, 0),
    "-": (0, 0, 0, 31, 0, 0, 0),
    "*": (0, 17, 10, 4, 10, 17, 0),
    "/": (1, 1, 2, 4, 8, 16, 16),
    "(": (2, 4, 8, 8, 8, 4, 2),
    ")": (8, 4, 2, 2, 2, 4, 8),
    "=": (0, 0, 31, 0, 31, 0, 0),
    ":": (0, 4, 4, 0, 4, 4, 0),
    " ": (0, 0, 0, 0, 0, 0, 0),
    "C": (14, 17, 16, 16, 16, 17, 14),
    "D": (28, 18, 17, 17, 17, 18, 28),
    "F": (31, 16, 16, 30, 16, 16, 16),
    "T": (31, 4, 4, 4, 4, 4, 4),
    "Y": (17, 17, 10, 4, 4, 4, 4),
    "a": (0, 0, 14, 1, 15, 17, 15),
    "e": (0, 0, 14, 17, 31, 16, 14),
    "g": (0, 15, 17, 17, 15, 1, 14),
    "l": (12, 4, 4, 4, 4, 4, 14),
    "m": (0, 0, 26, 21, 21, 21, 21),
    "n": (0, 0, 22, 25, 17, 17, 17),
    "o": (0, 0, 14, 17, 17, 17, 14),
    "r": (0, 0, 22, 25, 16, 16, 16),
    "t": (8, 8, 28, 8, 8, 9, 6),
    "u": (0, 0, 17, 17, 17, 19, 13),
}


def canvas(height: int, width: int, colour: Colour) -> np.ndarray:
    """An image of one colour, uint8 [height, width, 3]."""
    return _canvas(height, width, colour).copy()


@functools.cache
def _canvas(height: int, width: int, colour: Colour) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def fill(image: np.ndarray, mask: np.ndarray, colour: Colour, top: int = 0, left: int = 0) -> None:
    """Paints a colour where a mask (floats [h, w], 0 to 1) lies; what reaches beyond the image is left out."""
    part = image[top : top + mask.shape[0], left : left + mask.shape[1]]
    cover = mask[: part.shape[0], : part.shape[1], None]
    part[:] = np.rint(part * (1.0 - cover) + np.asarray(colour, np.float32) * cover)


def grid(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The places of the samples of a mask in pixels: y [h, 1], x [1, w]."""
    y, x = ((np.arange(side * _FINE, dtype=np.float32) + 0.5) / _FINE for side in (height, width))
    return y[:, None], x[None, :]


def smooth(inside: np.ndarray) -> np.ndarray:
    """Samples on `grid` that are inside a shape -> the covered share of each pixel, float32 [h, w]."""
    height, width = inside.shape
    return inside.reshape(height // _FINE, _FINE, width // _FINE, _FINE).mean((1, 3), dtype=np.float32)


def write(image: np.ndarray, text: str, scale: int, colour: Colour, ground: Colour, top: int, left: int) -> None:
    """Writes a line of text on a ground of one colour; 6 scale pixels a character."""
    if text:
        line = np.concatenate([_character(character, scale, colour, ground) for character in text], 1)
        image[top : top + line.shape[0], left : left + line.shape[1]] = line


@functools.cache
def _character(character: str, scale: int, colour: Colour, ground: Colour) -> np.ndarray:
    mask = text_mask(character, scale)
    image = canvas(mask.shape[0], mask.shape[1], ground)
    fill(image, mask, colour)
    return image


def text_mask(text: str, scale: int) -> np.ndarray:
    """A line of text, float32 [8 scale, 6 scale len(text)]; its strokes are half as wide again as a glyph's pixel."""
    glyphs = np.array([_GLYPHS[character] for character in text], np.uint8).reshape(len(text), 7)
    pixels = np.unpackbits(glyphs[..., None] * np.uint8(8), axis=-1)[..., :6]  # the sixth column is a gap
    line = np.zeros((8, 6 * len(text)), np.float32)
    line[:7] = pixels.transpose(1, 0, 2).reshape(7, -1)
    mask = np.kron(line, np.ones((scale, scale), np.float32))
    for axis in (0, 1):
        mask = np.maximum(mask, np.roll(mask, scale // 2, axis))
    return mask
