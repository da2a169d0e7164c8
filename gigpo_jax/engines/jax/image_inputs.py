"""The images of a batch of prompts, as the device reads them."""

from dataclasses import dataclass
from typing import Any

import jax

from gigpo_jax.models.vision.vision import Features


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ImageInputs:
    """Images of a batch of prompts, for a model that reads images.

    Attributes:
      positions: [B, 3, T] i32, rotary positions (time, height, width) of the tokens.
      shift: [B] i32, as in `SlotState`.
      features: image features in the places of their tokens, B x T.
    """

    positions: Any
    shift: Any
    features: Features
