"""The images of a prompt: they belong to it, and tell it from prompts with other images."""

import math

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.vision.images import PromptImages, prepare_images
from gigpo_jax.models.vision.vision_config import VisionConfig


def check_images(
    vision: VisionConfig | None, prompt: np.ndarray, images: PromptImages | None
) -> PromptImages | None:
    """Checks that images belong to a prompt.

    Returns:
      The images, of which there may be none; None for a text-only model.

    Raises:
      InputError: The model reads no images, or the images belong to another prompt.
    """
    if vision is None:
        if images is not None:
            raise InputError(
                "this model reads text alone",
                fix="use a model with a vision tower, such as Qwen3-VL",
            )
        return None
    if images is None:
        # A text without images has a layout too: the rotary positions of a row are read from it.
        images = prepare_images(vision, prompt, ())
    is_image_token = prompt == vision.image_token
    if not np.array_equal(is_image_token, images.layout.index >= 0):
        raise InputError(
            f"a prompt of {len(prompt)} tokens has {is_image_token.sum()} places of images that "
            "are not those of its images",
            fix="give the images that `prepare_images` gives for these tokens",
        )
    return images


def hash_images(prompt: np.ndarray, prompt_images: PromptImages) -> np.ndarray:
    """Returns the token ids [P] of a prompt with a hash of its image in place of an image token."""
    images = prompt_images.images
    # -1 in the place of a text token, else the number of the feature among all images [P].
    index = prompt_images.layout.index
    digests = b"".join(image.digest for image in images)
    half_digests = np.frombuffer(digests, np.int64)[::2]  # a digest is 16 bytes
    hashes = np.repeat(half_digests, [math.prod(image.grid) for image in images])
    # The appended 0 is what the index -1 of a text token reads; np.where drops it.
    return np.where(index < 0, prompt, np.append(hashes, 0)[index])
