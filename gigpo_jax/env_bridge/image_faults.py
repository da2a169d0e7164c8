"""What is wrong with the images of an observation."""

from typing import Any

import numpy as np

from gigpo_jax.env_bridge.types import IMAGE

MAX_PIXELS = 4_000_000  # of one observation: all its images together
_ALLOWED = "uint8 [H, W, 3], at least one pixel each"


def find_fault(images: tuple[Any, ...], text: str) -> tuple[Any, str] | None:
    """Returns the value that is wrong and what is allowed; None if nothing is wrong."""
    for image in images:
        if not isinstance(image, np.ndarray):
            return image, _ALLOWED
        is_rgb = image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
        if not is_rgb or not image.size:
            return f"{image.dtype} {list(image.shape)}", _ALLOWED
    pixels = sum(image.size // 3 for image in images)
    if pixels > MAX_PIXELS:
        return f"{pixels:,} pixels", f"at most {MAX_PIXELS:,} in all"
    marks = text.count(IMAGE)
    if marks != len(images):
        return f"{len(images)} for {marks} {IMAGE} in the text", f"one for each {IMAGE}"
    return None
