"""Prompts with images: an observation as tokens and images that a model reads."""

from collections.abc import Callable, Sequence

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.types import IMAGE
from gigpo_jax.models.text.continuation import encode_continuation
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.models.vision.images import expand_image_tokens, token_grid
from gigpo_jax.models.vision.vision_config import VisionConfig


def picture_encoder(tokenizer: Tokenizer, vision: VisionConfig) -> Callable[..., list[int]]:
    """Builds the encoder of a model that reads images; see `prompt_encoding.prompt_encoder`."""
    ids = (vision.start_token, vision.image_token, vision.end_token)
    mark = {"mark": IMAGE, "special": "".join(filter(None, map(tokenizer.token, ids)))}

    def encode(
        text: str,
        images: Sequence[np.ndarray] = (),
        *,
        system: str = "",
        response: Sequence[int] | None = None,
    ) -> list[int]:
        # A request for a summary has no picture of its own.
        if images or response is None:
            check_modality(images, reads_images=True)
        if response is None:
            tokens = tokenizer.encode_chat(text, system=system, **mark)
        else:
            tokens = encode_continuation(tokenizer, text, response, **mark)
        # An image takes as many tokens as it has features: prompt lengths depend on image sizes.
        grids = [token_grid(vision, image) for image in images]
        return expand_image_tokens(vision, tokens, grids)

    return encode


def check_modality(images: Sequence[np.ndarray], *, reads_images: bool) -> None:
    """Checks the images against what the model reads.

    Raises:
      InputError: there are images for a model of text alone, or none for one that reads images.
    """
    if images and not reads_images:
        raise InputError(
            "the environment shows pictures, and this model reads text alone",
            key="config.model.path",
            fix="use a model with a vision tower, such as Qwen3-VL (a new one: "
            "config.model.shape.vision.depth), or config.env.options.observation='text'",
        )
    if reads_images and not images:
        raise InputError(
            "this model reads pictures, and the environment shows none",
            key="config.model.path",
            fix="use a model of text, or in the small games "
            "config.env.options.observation='picture'",
        )


def check_length(tokens: Sequence[int], images: Sequence[np.ndarray], limit: int) -> None:
    """Checks the length of a prompt with images.

    Raises:
      InputError: the prompt has more than `limit` tokens.
    """
    if images and len(tokens) > limit:
        raise InputError(
            f"a prompt with {len(images)} image(s) takes {len(tokens)} tokens, and nothing is "
            "cut out of such a prompt",
            key="config.sampling.max_prompt_tokens",
            value=limit,
            fix="use that or more",
        )
