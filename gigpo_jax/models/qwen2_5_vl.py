"""Qwen2.5-VL and Qwen3-VL: texts with images through the vision tower and the decoder.

from gigpo_jax.models import load_hf, qwen2_5_vl

config, params = load_hf("Qwen2.5-VL-3B-Instruct")
# [B, T] i32, a list of uint8 [H, W, 3] -> [B, T, V] f32
scores = qwen2_5_vl.logits(config, params, tokens, images)
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.models import decoder
from gigpo_jax.models.decoder import DecoderConfig, Params
from gigpo_jax.models.vision.images import distinct_images, prepare_images, token_grid
from gigpo_jax.models.vision.vision import Images, pack_images
from gigpo_jax.models.vision.vision_config import MERGE, VisionConfig


def logits(
    config: DecoderConfig,
    params: Params,
    tokens: Any,
    images: Sequence[np.ndarray],
    *,
    dtype: Any = None,
) -> jax.Array:
    """Scores every next token of texts with images.

    Args:
      config: shape of a model with a vision tower.
      params: parameter tree of `load_hf`.
      tokens: [B, T] i32, with a place for each token of an image.
      images: uint8 [H, W, 3] each, in the order of their places, row by row.
      dtype: compute dtype; None: the parameters'.

    Returns:
      [B, T, V] f32.

    Raises:
      InputError: the model has no vision tower, an image cannot be read, or the places do not fit
        the images.
    """
    positions, packed_images = prepare_inputs(config, np.asarray(tokens), images)
    return _run_texts(config, params, tokens, positions, packed_images, dtype)


@functools.partial(jax.jit, static_argnums=(0, 5))
def _run_texts(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    images: Images,
    dtype: Any,
) -> jax.Array:
    execution = decoder.Execution(dtype)
    hidden = decoder.hidden_states(
        config, params, tokens, positions, execution=execution, images=images
    )
    return decoder.score_tokens(config, params, hidden)


def prepare_inputs(
    config: DecoderConfig, tokens: np.ndarray, images: Sequence[np.ndarray]
) -> tuple[np.ndarray, Images]:
    """Returns positions [3, B, T] and images of texts, one a row; arguments as for `logits`."""
    vision = vision_config(config)
    image_sizes = [math.prod(token_grid(vision, image)) for image in images]
    texts = []
    num_assigned = 0
    for row in tokens:
        first_image = num_assigned
        # Images are in the order of the texts: a row takes images until its places are full.
        # `prepare_images` refuses a row whose places its images do not fill exactly.
        free_places = int(np.sum(row == vision.image_token))
        while free_places > 0 and num_assigned < len(image_sizes):
            free_places -= image_sizes[num_assigned]
            num_assigned += 1
        texts.append(prepare_images(vision, row, images[first_image:num_assigned]))
    if num_assigned != len(images):
        raise InputError(f"places for {num_assigned} of {len(images)} images", key="prompts")
    unique_images, index = distinct_images(texts)
    # At least one image of one square, so that texts without images give no empty arrays.
    longest = max([MERGE**2, *(len(image.patches) for image in unique_images)])
    packed = pack_images(
        unique_images,
        np.stack(index),
        number=max(len(unique_images), 1),
        longest=longest,
        values=vision.patch_values,
    )
    positions = np.stack([text.layout.positions for text in texts], axis=1)
    return positions, packed


def vision_config(config: DecoderConfig) -> VisionConfig:
    """Returns the shape of the vision tower.

    Raises InputError for a model that reads text alone.
    """
    if config.vision is None:
        raise InputError(
            "this model reads text alone", fix="use a model with a vision tower, such as Qwen3-VL"
        )
    return config.vision
