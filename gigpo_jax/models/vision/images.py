"""Image preprocessing of Qwen2.5-VL and Qwen3-VL: size, patches, places, positions. numpy only.

An image takes one token for each square of 28 x 28 pixels, in Qwen3-VL 32 x 32. Sizes that are no
multiples of that are resized first: bicubic with antialiasing, in the fixed-point arithmetic of
Pillow, to the last bit.

The image processor of transformers is not used. It imports PyTorch where that is installed (4.2 CPU
seconds, 340 MB), gives float32 of two equal frames, 8 times the bytes that a run keeps for every
step, and resizes as the installed Pillow does: version 13 changed 31% of the values of a picture of
900 x 500. A picture of 168 x 168 takes 0.05 ms here and 0.87 ms there; resizing is slower here
(benchmarks/images.py).
"""

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.vision.vision_config import MERGE, VisionConfig

# 32 bits without the 8 of a pixel and 2 for overshoot and sign.
_FRACTION_BITS = 22  # fraction of Pillow's integer weights
_RADIUS = 2.0  # of the cubic kernel, in pixels of the result (of the source, if it is enlarged)


def target_size(config: VisionConfig, height: int, width: int) -> tuple[int, int]:
    """Returns the size of the resized image, whose area is within the bounds.

    Its sides are multiples of the side of a square of patches.

    Raises:
      InputError: one side is more than 200 times the other.
    """
    square = config.square
    if max(height, width) > 200 * min(height, width):
        raise InputError(
            f"{height} x {width} pixels; one side is more than 200 times the other", key="image"
        )
    rows = max(square, round(height / square) * square)
    columns = max(square, round(width / square) * square)
    # The rounding is that of the published processor; features depend on it.
    if rows * columns > config.max_pixels:
        ratio = math.sqrt(height * width / config.max_pixels)
        rows = max(square, math.floor(height / ratio / square) * square)
        columns = max(square, math.floor(width / ratio / square) * square)
    elif rows * columns < config.min_pixels:
        ratio = math.sqrt(config.min_pixels / (height * width))
        rows = math.ceil(height * ratio / square) * square
        columns = math.ceil(width * ratio / square) * square
    return rows, columns


def token_grid(config: VisionConfig, image: np.ndarray) -> tuple[int, int]:
    """Rows and columns of tokens of an image.

    Raises:
      InputError: the image is not uint8 [H, W, 3], or too narrow.
    """
    if not isinstance(image, np.ndarray):
        raise InputError(f"a {type(image).__name__}", key="image", fix="give uint8 [H, W, 3]")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise InputError(
            f"{image.dtype} {list(image.shape)}", key="image", fix="give uint8 [H, W, 3]"
        )
    if not image.size:
        raise InputError(f"shape {list(image.shape)}", key="image", fix="give at least one pixel")
    height, width = target_size(config, *image.shape[:2])
    return height // config.square, width // config.square


def cut_patches(config: VisionConfig, image: np.ndarray) -> np.ndarray:
    """Cuts an image, uint8 [H, W, 3], into patches [P, C] u8 in the order of `vision`.

    C is `VisionConfig.patch_values`. The image is resized if need be.
    """
    height, width = target_size(config, *image.shape[:2])
    side = config.patch_size
    resized = resize(image, height, width)
    squares = resized.reshape(
        height // config.square, MERGE, side, width // config.square, MERGE, side, 3
    )
    # [rows, columns, MERGE, MERGE, channel, y, x]: the patches of one token are neighbours.
    patches = np.ascontiguousarray(squares.transpose(0, 3, 1, 4, 6, 2, 5))
    return patches.reshape(-1, config.patch_values)


def restore_pixels(image: "ImagePatches") -> np.ndarray:
    """Returns the pixels of an image, uint8 [H, W, 3], after the resizing of `cut_patches`."""
    rows, columns = image.grid
    side = math.isqrt(image.patches.shape[1] // 3)
    patches = image.patches.reshape(rows, columns, MERGE, MERGE, 3, side, side)
    squares = patches.transpose(0, 2, 5, 1, 3, 6, 4)
    return squares.reshape(rows * MERGE * side, columns * MERGE * side, 3)


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resizes uint8 [H, W, 3] as Pillow's BICUBIC does."""
    # Columns come first; Pillow from version 13 on does so unless the height shrinks much more than
    # the width.
    if width != image.shape[1]:
        image = _resample_rows(image.swapaxes(0, 1), width).swapaxes(0, 1)
    if height != image.shape[0]:
        image = _resample_rows(image, height)
    return image


def _resample_rows(image: np.ndarray, size: int) -> np.ndarray:
    first_rows, weights = _resampling_weights(image.shape[0], size)
    # Half of the last place is added first, so that the shift at the end rounds.
    out = np.full((size, *image.shape[1:]), 1 << (_FRACTION_BITS - 1), np.int64)
    for tap in range(weights.shape[1]):
        # Taps beyond the last row have weight 0; the bound only keeps the index valid.
        rows = np.minimum(first_rows + tap, image.shape[0] - 1)
        out += image[rows] * weights[:, tap, None, None]
    return np.clip(out >> _FRACTION_BITS, 0, 255).astype(np.uint8)


@functools.lru_cache(maxsize=64)
def _resampling_weights(source: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of `source` pixels for each of `size` resulting pixels.

    Returns:
      First source pixel of each result [size], and the integer weights of the pixels from there on
      [size, taps], which sum to 2^22.
    """
    scale = source / size
    stretch = max(scale, 1.0)
    radius = _RADIUS * stretch
    centre = (np.arange(size) + 0.5) * scale
    # Pixels are points at i + 0.5. `astype` cuts towards 0, as the casts in Pillow do.
    first = np.maximum((centre - radius + 0.5).astype(np.int64), 0)
    end = np.minimum((centre + radius + 0.5).astype(np.int64), source)
    pixel = first[:, None] + np.arange(int((end - first).max()))
    distance = (pixel - centre[:, None] + 0.5) / stretch
    weights = np.where(pixel < end[:, None], _cubic_kernel(distance), 0.0)
    weights /= weights.sum(1, keepdims=True)
    scaled = weights * (1 << _FRACTION_BITS)
    # Halves are rounded away from 0, as in Pillow; `np.round` would take the even neighbour.
    return first, np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int64)


def _cubic_kernel(x: np.ndarray) -> np.ndarray:
    """Cubic convolution kernel with a = -0.5."""
    x = np.abs(x)
    a = -0.5
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, inner, np.where(x < _RADIUS, outer, 0.0))


def expand_image_tokens(
    config: VisionConfig, tokens: Sequence[int], grids: Sequence[tuple[int, int]]
) -> list[int]:
    """Repeats the image token, which a chat template writes once an image, for each feature.

    Raises:
      InputError: the tokens have more or fewer places than there are images.
    """
    num_places = sum(token == config.image_token for token in tokens)
    if num_places != len(grids):
        raise InputError(
            f"{num_places} places for {len(grids)} images",
            key="prompt",
            fix="give one image a place",
        )
    sizes = iter([rows * columns for rows, columns in grids])
    expanded: list[int] = []
    for token in tokens:
        copies = next(sizes) if token == config.image_token else 1
        expanded += [token] * copies
    return expanded


@dataclass(frozen=True, eq=False)
class Layout:
    """Places of the images in a prompt.

    Attributes:
      positions: [3, P] i32, rotary positions of the tokens: frame, row, column.
      index: [P] i32, feature in the place of each token, counted over the prompt's images; -1 for
        none.
      shift: position of a later token minus its number in the sequence, at most 0.
    """

    positions: np.ndarray
    index: np.ndarray
    shift: int


def locate_images(
    config: VisionConfig, tokens: np.ndarray, grids: Sequence[tuple[int, int]]
) -> Layout:
    """Computes the layout of a prompt [P] with images.

    Their places are expanded. Image (h, w) from token s on has the positions
    (s, s + row, s + column), s counted in positions; the text after it continues at
    s + max(h, w). Source: Qwen2-VL, arXiv 2409.12191, section 2.1.

    Raises:
      InputError: the places do not fit the images.
    """
    places = np.flatnonzero(tokens == config.image_token)
    num_features = sum(rows * columns for rows, columns in grids)
    if len(places) != num_features:
        raise InputError(
            f"{len(places)} places for the {num_features} features of {len(grids)} images",
            key="prompt",
        )
    index = np.full(len(tokens), -1, np.int32)
    index[places] = np.arange(len(places))
    positions = np.zeros((3, len(tokens)), np.int32)
    text_start = 0
    num_placed = 0
    position = 0
    for rows, columns in grids:
        start = int(places[num_placed])
        size = rows * columns
        # Places are ascending and distinct, so the last one tells whether all are in a row.
        if places[num_placed + size - 1] != start + size - 1:
            raise InputError(
                f"the {size} places of an image from token {start} on are not in a row",
                key="prompt",
            )
        positions[:, text_start:start] = position + np.arange(start - text_start)
        position += start - text_start
        row_index, column_index = np.divmod(np.arange(size), columns)
        offsets = np.stack([np.zeros(size, np.int32), row_index, column_index])
        positions[:, start : start + size] = position + offsets
        text_start = start + size
        num_placed += size
        # Later text stands above all positions of the image. An image has at least as many tokens
        # as positions, hence `shift` <= 0.
        position += max(rows, columns)
    positions[:, text_start:] = position + np.arange(len(tokens) - text_start)
    return Layout(positions, index, position - text_start)


@dataclass(frozen=True, eq=False)
class ImagePatches:
    """One preprocessed image.

    Attributes:
      patches: [P, C] u8, result of `cut_patches`.
      grid: rows and columns of its tokens.
    """

    patches: np.ndarray
    grid: tuple[int, int]

    @functools.cached_property
    def digest(self) -> bytes:
        """Hash of the image, 16 bytes."""
        # With the grid, because images of different shape may have the same bytes.
        content = repr(self.grid).encode() + self.patches.tobytes()
        return hashlib.blake2b(content, digest_size=16).digest()


@dataclass(frozen=True, eq=False)
class PromptImages:
    """Images of a prompt, and their places in its tokens.

    Attributes:
      layout: places and positions.
      images: images in their order.
      patch_values: C, numbers in a patch of the model; 0 where no model is known.
    """

    layout: Layout
    images: tuple[ImagePatches, ...]
    patch_values: int


def prepare_images(
    config: VisionConfig, tokens: Sequence[int] | np.ndarray, images: Sequence[np.ndarray]
) -> PromptImages:
    """Prepares the images of a prompt whose tokens have expanded places.

    Raises:
      InputError: as for `locate_images` and `token_grid`.
    """
    grids = [token_grid(config, image) for image in images]
    prepared = [
        ImagePatches(cut_patches(config, image), grid)
        for image, grid in zip(images, grids, strict=True)
    ]
    layout = locate_images(config, np.asarray(tokens), grids)
    return PromptImages(layout, tuple(prepared), config.patch_values)


def collapse_image_tokens(tokens: np.ndarray, images: PromptImages) -> np.ndarray:
    """Reduces a prompt [P] to one token an image, the inverse of `expand_image_tokens`."""
    sizes = [math.prod(image.grid) for image in images.images]
    first_features = np.cumsum([0, *sizes])[:-1]
    index = images.layout.index
    return tokens[(index < 0) | np.isin(index, first_features)]


def distinct_images(
    prompts: Sequence[PromptImages],
) -> tuple[list[ImagePatches], list[np.ndarray]]:
    """Removes repeated images of prompts.

    Returns:
      The distinct images, and the `Layout.index` of each prompt, counted over these.
    """
    numbers: dict[bytes, int] = {}
    images: list[ImagePatches] = []
    first_features = [0]
    indices = []
    for prompt in prompts:
        # The empty array is for prompts without images: `concatenate` needs one.
        features = [np.array([], np.int32)]
        for image in prompt.images:
            number = numbers.setdefault(image.digest, len(images))
            if number == len(images):
                images.append(image)
                first_features.append(first_features[-1] + math.prod(image.grid))
            features.append(
                np.arange(first_features[number], first_features[number + 1], dtype=np.int32)
            )
        # The last entry is that of index -1.
        new_index = np.append(np.concatenate(features), np.int32(-1))
        indices.append(new_index[prompt.layout.index])
    return images, indices
