"""Prompts with images: an observation's text and images -> the tokens and images that a model reads."""

from collections.abc import Callable, Sequence

import numpy as np

from gigpo_jax.env_bridge.types import IMAGE
from gigpo_jax.errors import InputError
from gigpo_jax.models.images import PromptImages, expand, grid_of, read_images
from gigpo_jax.models.tokenizer import Tokenizer
from gigpo_jax.models.vision_config import VisionConfig


def prompt_encoder(tokenizer: Tokenizer, vision: VisionConfig | None) -> Callable[..., list[int]]:
    """Builds a function: a prompt's text, and the images of its marks -> the ids of the whole chat message.

    The function raises InputError as `check_kind`, and for an image that cannot be read.
    """
    mark = {}
    if vision is not None:
        tokens = vision.start_token, vision.image_token, vision.end_token
        mark = {"mark": IMAGE, "special": "".join(filter(None, map(tokenizer.token, tokens)))}

    def encode(text: str, images: Sequence[np.ndarray] = ()) -> list[int]:
        check_kind(images, reads=vision is not None)
        tokens = tokenizer.encode_chat(text, **mark)
        return tokens if vision is None else expand(vision, tokens, [grid_of(vision, image) for image in images])

    return encode


def check_kind(images: Sequence[np.ndarray], *, reads: bool) -> None:
    """Raises InputError for images where the model reads text alone, and for none where it reads images."""
    if images and not reads:
        raise InputError(
            "config.model.path: the environment shows pictures, and this model reads text alone; use a model with a "
            "vision tower, such as Qwen2.5-VL (a new one: config.model.shape.vision.depth), or "
            "config.env.options.observation='text'"
        )
    if reads and not images:
        raise InputError(
            "config.model.path: this model reads pictures, and the environment shows none; use a model of text, or in "
            "the small games config.env.options.observation='picture'"
        )


def check_length(tokens: Sequence[int], images: Sequence[np.ndarray], limit: int) -> None:
    """Raises InputError for a prompt of more than `limit` tokens with images: nothing is cut out of such a prompt."""
    if images and len(tokens) > limit:
        raise InputError(
            f"config.sampling.max_prompt_tokens={limit}: a prompt with {len(images)} image(s) takes {len(tokens)} "
            "tokens, and nothing is cut out of such a prompt; use that or more"
        )


def prompt_images(
    vision: VisionConfig | None, tokens: Sequence[int], images: Sequence[np.ndarray]
) -> PromptImages | None:
    """The images of a prompt from `prompt_encoder`; None for a model of text alone."""
    return None if vision is None else read_images(vision, tokens, images)
