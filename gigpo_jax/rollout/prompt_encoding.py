"""Observations as the token ids that a model reads; `rollout.pictures` has those with images."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gigpo_jax.models.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gigpo_jax.models.vision.images import PromptImages
    from gigpo_jax.models.vision.vision_config import VisionConfig


def prompt_encoder(tokenizer: Tokenizer, vision: "VisionConfig | None") -> Callable[..., list[int]]:
    """Builds the encoder of chat messages with images.

    It maps (text, images of its marks) to token ids of the whole chat message. For conversations it
    takes `system` and `response` (`prompt_building.build_prompt`). The function raises
    InputError as `pictures.check_modality`, and for an image that cannot be read.
    """
    if vision is not None:
        from gigpo_jax.rollout.pictures import picture_encoder

        return picture_encoder(tokenizer, vision)

    def encode(
        text: str,
        images: Sequence[np.ndarray] = (),
        *,
        system: str = "",
        response: Sequence[int] | None = None,
    ) -> list[int]:
        if images:
            from gigpo_jax.rollout.pictures import check_modality

            check_modality(images, reads_images=False)
        if response is None:
            return tokenizer.encode_chat(text, system=system)
        from gigpo_jax.models.text.continuation import encode_continuation

        return encode_continuation(tokenizer, text, response)

    return encode


def prompt_images(
    vision: "VisionConfig | None", tokens: Sequence[int], images: Sequence[np.ndarray]
) -> "PromptImages | None":
    """Returns the images of a prompt from `prompt_encoder`; None for a model of text alone."""
    if vision is None:
        return None
    from gigpo_jax.models.vision.images import prepare_images

    return prepare_images(vision, tokens, images)
