"""Qwen2.5-VL: texts with images through the vision tower and the decoder of `qwen2`.

from gigpo_jax.models import load_hf, qwen2_5_vl

config, params = load_hf("Qwen2.5-VL-3B-Instruct")
scores = qwen2_5_vl.logits(config, params, tokens, images)  # [B, T] i32, uint8 [H, W, 3] each -> [B, T, V] f32
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from gigpo_jax.errors import InputError
from gigpo_jax.models import qwen2
from gigpo_jax.models.images import distinct, grid_of, read_images
from gigpo_jax.models.qwen2 import Params, Qwen2Config
from gigpo_jax.models.vision import Images, pack_images
from gigpo_jax.models.vision_config import MERGE, VisionConfig


def logits(
    config: Qwen2Config, params: Params, tokens: Any, images: Sequence[np.ndarray], *, dtype: Any = None
) -> jax.Array:
    """Scores every next token of texts with images.

    Args:
      config: with a vision tower.
      params: as from `load_hf`.
      tokens: [B, T] i32, with a place for each token of an image.
      images: uint8 [H, W, 3] each, in the order of their places, row by row.
      dtype: of the computation; None: the parameters'.

    Returns:
      [B, T, V] f32.

    Raises:
      InputError: the model has no vision tower, an image cannot be read, or the places are not those of the images.
    """
    positions, placed = inputs(config, np.asarray(tokens), images)
    return _logits(config, params, tokens, positions, placed, dtype)


@functools.partial(jax.jit, static_argnums=(0, 5))
def _logits(
    config: Qwen2Config, params: Params, tokens: jax.Array, positions: jax.Array, images: Images, dtype: Any
) -> jax.Array:
    execution = qwen2.Execution(dtype)
    hidden = qwen2.hidden_states(config, params, tokens, positions, execution=execution, images=images)
    return qwen2.unembed(config, params, hidden)


def inputs(config: Qwen2Config, tokens: np.ndarray, images: Sequence[np.ndarray]) -> tuple[np.ndarray, Images]:
    """The positions [3, B, T] and images of texts, arguments as for `logits`; every row is one text."""
    vision = tower(config)
    sizes, texts, taken = [math.prod(grid_of(vision, image)) for image in images], [], 0
    for row in tokens:
        first, left = taken, int(np.sum(row == vision.image_token))
        while left > 0 and taken < len(sizes):
            left -= sizes[taken]
            taken += 1
        texts.append(read_images(vision, row, images[first:taken]))
    if taken != len(images):
        raise InputError(f"the texts have places for {taken} of {len(images)} images")
    each, index = distinct(texts)
    longest = max([MERGE**2, *(len(image.patches) for image in each)])
    packed = pack_images(each, np.stack(index), number=max(len(each), 1), longest=longest)
    return np.stack([text.layout.positions for text in texts], axis=1), packed


def tower(config: Qwen2Config) -> VisionConfig:
    """The shape of the vision tower; InputError for a model that reads text alone."""
    if config.vision is None:
        raise InputError("this model reads text alone; use a model with a vision tower, such as Qwen2.5-VL")
    return config.vision
