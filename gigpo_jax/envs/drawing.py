"""Shapes and characters as arrays: what the pictures of games are made of."""

import functools

import numpy as np

# Pixels. Qwen2.5-VL makes one token of a square of this side, and resizes an image whose sides are
# no multiples of it.
PATCH = 28
Colour = tuple[int, int, int]
_SAMPLES = 4  # a pixel, along each axis: edges are smooth

# Characters of 5 x 7 pixels, drawn for this project. A row is a number whose bits are pixels, the
# left one highest.
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


def make_canvas(height: int, width: int, colour: Colour) -> np.ndarray:
    """An image of one colour, uint8 [height, width, 3]."""
    # Copied, as callers paint on it; the constant itself is made once.
    return _make_constant(height, width, colour).copy()


@functools.cache
def _make_constant(height: int, width: int, colour: Colour) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def fill(image: np.ndarray, mask: np.ndarray, colour: Colour, top: int = 0, left: int = 0) -> None:
    """Paints a colour through a mask.

    Args:
      image: Image to change, uint8 [H, W, 3].
      mask: Share of the colour, floats from 0 to 1, [h, w]; cut at the image's border.
      colour: Colour.
      top: Row of the mask's corner.
      left: Column of the mask's corner.
    """
    # A view: what is painted into it changes the image.
    region = image[top : top + mask.shape[0], left : left + mask.shape[1]]
    share = mask[: region.shape[0], : region.shape[1], None]
    region[:] = np.rint(region * (1.0 - share) + np.asarray(colour, np.float32) * share)


def make_grid(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the coordinates of a mask's samples, y [h, 1] and x [1, w], in pixels."""
    y = (np.arange(height * _SAMPLES, dtype=np.float32) + 0.5) / _SAMPLES
    x = (np.arange(width * _SAMPLES, dtype=np.float32) + 0.5) / _SAMPLES
    return y[:, None], x[None, :]


def average_samples(inside: np.ndarray) -> np.ndarray:
    """The covered share of each pixel.

    Args:
      inside: Whether a sample of `make_grid` is inside a shape, bool.

    Returns:
      Mask, float32 [h, w].
    """
    height, width = inside.shape
    samples = inside.reshape(height // _SAMPLES, _SAMPLES, width // _SAMPLES, _SAMPLES)
    return samples.mean((1, 3), dtype=np.float32)


def write_text(
    image: np.ndarray, text: str, scale: int, colour: Colour, ground: Colour, top: int, left: int
) -> None:
    """Writes a line of text on a plain ground, with characters 6 x scale pixels wide."""
    if not text:
        return
    characters = [_draw_character(character, scale, colour, ground) for character in text]
    line = np.concatenate(characters, axis=1)
    image[top : top + line.shape[0], left : left + line.shape[1]] = line


# Pictures show a text at every step: whole characters are copied, not drawn again.
@functools.cache
def _draw_character(character: str, scale: int, colour: Colour, ground: Colour) -> np.ndarray:
    mask = make_text_mask(character, scale)
    image = make_canvas(mask.shape[0], mask.shape[1], ground)
    fill(image, mask, colour)
    return image


def make_text_mask(text: str, scale: int) -> np.ndarray:
    """A line of text, float32 [8 scale, 6 scale len(text)]."""
    glyphs = np.array([_GLYPHS[character] for character in text], np.uint8).reshape(len(text), 7)
    # Times 8: the five columns of a glyph become the highest bits; the sixth is the gap.
    pixels = np.unpackbits(glyphs[..., None] * np.uint8(8), axis=-1)[..., :6]
    line = np.zeros((8, 6 * len(text)), np.float32)
    line[:7] = pixels.transpose(1, 0, 2).reshape(7, -1)
    mask = np.kron(line, np.ones((scale, scale), np.float32))
    # Strokes one and a half times as wide as a glyph's pixel are easier to read.
    for axis in (0, 1):
        mask = np.maximum(mask, np.roll(mask, scale // 2, axis))
    return mask
