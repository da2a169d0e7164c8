"""Images as Qwen2.5-VL reads them: size, patches, their places in a text, and positions. numpy only.

An image takes one token for each square of 28 x 28 pixels. Sizes that are no multiples of 28 are resized first: bicubic
with antialiasing, in the fixed-point arithmetic of Pillow, to the last bit.
"""

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gigpo_jax.errors import InputError
from gigpo_jax.models.vision_config import MERGE, VisionConfig

_BITS = 22  # of the fraction of Pillow's weights
_REACH = 2.0  # of the cubic kernel, in pixels of the result (of the source, if it is enlarged)


def target_size(config: VisionConfig, height: int, width: int) -> tuple[int, int]:
    """The size in pixels at which an image is read: multiples of 28, an area within the bounds.

    Raises:
      InputError: one side is more than 200 times the other.
    """
    square = config.square
    if max(height, width) > 200 * min(height, width):
        raise InputError(f"an image of {height} x {width} pixels: one side is more than 200 times the other")
    rows, columns = (max(square, round(side / square) * square) for side in (height, width))
    if rows * columns > config.max_pixels:
        ratio = math.sqrt(height * width / config.max_pixels)
        return tuple(max(square, math.floor(side / ratio / square) * square) for side in (height, width))  # type: ignore
    if rows * columns < config.min_pixels:
        ratio = math.sqrt(config.min_pixels / (height * width))
        return tuple(math.ceil(side * ratio / square) * square for side in (height, width))  # type: ignore
    return rows, columns


def grid_of(config: VisionConfig, image: np.ndarray) -> tuple[int, int]:
    """Rows and columns of tokens of an image.

    Raises:
      InputError: it is no uint8 [H, W, 3], or too narrow.
    """
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        found = f"{image.dtype} {list(image.shape)}" if isinstance(image, np.ndarray) else type(image).__name__
        raise InputError(f"an image is {found}; give uint8 [H, W, 3]")
    if not image.size:
        raise InputError(f"an image has shape {list(image.shape)}; give at least one pixel")
    rows, columns = target_size(config, *image.shape[:2])
    return rows // config.square, columns // config.square


def patches_of(config: VisionConfig, image: np.ndarray) -> np.ndarray:
    """The patches [P, 588] u8 of an image uint8 [H, W, 3], resized if need be; order as in `vision`."""
    height, width = target_size(config, *image.shape[:2])
    image, side = resize(image, height, width), config.patch_size
    squares = image.reshape(height // config.square, MERGE, side, width // config.square, MERGE, side, 3)
    return np.ascontiguousarray(squares.transpose(0, 3, 1, 4, 6, 2, 5)).reshape(-1, config.patch_values)


def picture_of(image: "ReadImage") -> np.ndarray:
    """The pixels that a model reads, uint8 [H, W, 3]: the inverse of `patches_of` up to the resizing."""
    (rows, columns), side = image.grid, math.isqrt(image.patches.shape[1] // 3)
    squares = image.patches.reshape(rows, columns, MERGE, MERGE, 3, side, side).transpose(0, 2, 5, 1, 3, 6, 4)
    return squares.reshape(rows * MERGE * side, columns * MERGE * side, 3)


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resizes uint8 [H, W, 3] as Pillow's BICUBIC does.

    Columns come first; Pillow from version 13 on does so unless the height shrinks much more than the width.
    """
    if width != image.shape[1]:
        image = _resample(image.swapaxes(0, 1), width).swapaxes(0, 1)
    return image if height == image.shape[0] else _resample(image, height)


def _resample(image: np.ndarray, size: int) -> np.ndarray:
    first, weights = _weights(image.shape[0], size)
    out = np.full((size, *image.shape[1:]), 1 << (_BITS - 1), np.int64)
    for tap in range(weights.shape[1]):
        out += image[np.minimum(first + tap, image.shape[0] - 1)] * weights[:, tap, None, None]
    return np.clip(out >> _BITS, 0, 255).astype(np.uint8)


@functools.lru_cache(maxsize=64)
def _weights(source: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """For each pixel of the result the first pixel it reads, and the weights of those from there on, 2^22 in all."""
    scale = source / size
    stretch = max(scale, 1.0)
    reach = _REACH * stretch
    centre = (np.arange(size) + 0.5) * scale
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach + 0.5).astype(np.int64), source)
    pixel = first[:, None] + np.arange(int((last - first).max()))
    weights = np.where(pixel < last[:, None], _cubic((pixel - centre[:, None] + 0.5) / stretch), 0.0)
    weights /= weights.sum(1, keepdims=True)
    scaled = weights * (1 << _BITS)
    return first, np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int64)


def _cubic(x: np.ndarray) -> np.ndarray:
    """The cubic convolution kernel with a = -0.5."""
    x, a = np.abs(x), -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < _REACH, far, 0.0))


def expand(config: VisionConfig, tokens: Sequence[int], grids: Sequence[tuple[int, int]]) -> list[int]:
    """Repeats the one place of each image for all its tokens: what a chat template gives -> what the model reads.

    Raises:
      InputError: the tokens have more or fewer places than there are images.
    """
    count = sum(token == config.image_token for token in tokens)
    if count != len(grids):
        raise InputError(f"a prompt has {count} places for {len(grids)} images; give one image a place")
    sizes = iter(rows * columns for rows, columns in grids)
    return [copy for token in tokens for copy in [token] * (next(sizes) if token == config.image_token else 1)]


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the images of a prompt stand.

    Attributes:
      positions: [3, P] i32, the rotary positions of its tokens: frame, row, column.
      index: [P] i32, the feature in the place of each token, counted over the prompt's images; -1: none.
      shift: what the position of a later token differs by from its number in the sequence, at most 0.
    """

    positions: np.ndarray
    index: np.ndarray
    shift: int


def layout(config: VisionConfig, tokens: np.ndarray, grids: Sequence[tuple[int, int]]) -> Layout:
    """The layout of a prompt [P] with expanded places of images.

    Image (h, w) from token s on has the positions (s, s + row, s + column), s counted in positions; the text after it
    continues at s + max(h, w). Source: Qwen2-VL, arXiv 2409.12191, section 2.1.

    Raises:
      InputError: the places are not those of the images.
    """
    index = np.full(len(tokens), -1, np.int32)
    places = np.flatnonzero(tokens == config.image_token)
    if len(places) != sum(rows * columns for rows, columns in grids):
        found = sum(rows * columns for rows, columns in grids)
        raise InputError(f"a prompt has {len(places)} places for the {found} features of {len(grids)} images")
    index[places] = np.arange(len(places))
    positions = np.zeros((3, len(tokens)), np.int32)
    at = used = position = 0
    for rows, columns in grids:
        start, size = int(places[used]), rows * columns
        if places[used + size - 1] != start + size - 1:
            raise InputError(f"the {size} places of an image from token {start} on are not in a row")
        positions[:, at:start] = position + np.arange(start - at)
        position += start - at
        here = np.stack([np.zeros(size, np.int32), *np.divmod(np.arange(size), columns)])
        positions[:, start : start + size] = position + here
        at, used, position = start + size, used + size, position + max(rows, columns)
    positions[:, at:] = position + np.arange(len(tokens) - at)
    return Layout(positions, index, position - at)


@dataclass(frozen=True, eq=False)
class ReadImage:
    """One image as a model reads it.

    Attributes:
      patches: [P, 588] u8.
      grid: rows and columns of its tokens.
    """

    patches: np.ndarray
    grid: tuple[int, int]

    @functools.cached_property
    def digest(self) -> bytes:
        """16 bytes that tell images apart."""
        return hashlib.blake2b(repr(self.grid).encode() + self.patches.tobytes(), digest_size=16).digest()


@dataclass(frozen=True, eq=False)
class PromptImages:
    """The images of a prompt, and where they stand in its tokens."""

    layout: Layout
    images: tuple[ReadImage, ...]


def read_images(config: VisionConfig, tokens: Sequence[int] | np.ndarray, images: Sequence[np.ndarray]) -> PromptImages:
    """Reads the images of a prompt, whose tokens have expanded places; errors as for `layout` and `grid_of`."""
    grids = [grid_of(config, image) for image in images]
    read = [ReadImage(patches_of(config, image), grid) for image, grid in zip(images, grids, strict=True)]
    return PromptImages(layout(config, np.asarray(tokens), grids), tuple(read))


def compact(tokens: np.ndarray, images: PromptImages) -> np.ndarray:
    """A prompt [P] with a single place for each of its images, as before `expand`."""
    first = np.cumsum([0, *(math.prod(image.grid) for image in images.images)])[:-1]
    return tokens[(images.layout.index < 0) | np.isin(images.layout.index, first)]


def distinct(prompts: Sequence[PromptImages]) -> tuple[list[ReadImage], list[np.ndarray]]:
    """The distinct images of prompts, and for each prompt its `Layout.index`, counted over these."""
    numbers: dict[bytes, int] = {}
    images: list[ReadImage] = []
    first, indices = [0], []
    for prompt in prompts:
        spread = [np.array([], np.int32)]
        for image in prompt.images:
            number = numbers.setdefault(image.digest, len(images))
            if number == len(images):
                images.append(image)
                first.append(first[-1] + math.prod(image.grid))
            spread.append(np.arange(first[number], first[number + 1], dtype=np.int32))
        where = np.append(np.concatenate(spread), np.int32(-1))  # the last entry is that of index -1
        indices.append(where[prompt.layout.index])
    return images, indices
