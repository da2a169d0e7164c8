"""Marks of images in texts: a template may move or leave out a text, and its images go with it."""

import itertools
import re
from collections.abc import Sequence

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.text_reader import TextReader
from gigpo_jax.env_bridge.types import IMAGE

# A mark without an image is shown as plain text.
_PLAIN_MARK = IMAGE[0] + " " + IMAGE[1:]
# While a prompt is rendered, the number of its image follows each mark, so that an image stays
# with its mark when the template reorders texts or leaves some out. U+E000 is a private character.
_NUMBERED_MARK = re.compile(IMAGE + "\ue000(\\d+)\ue000")


def number_images(
    text: str, images: Sequence[np.ndarray], earlier_images: Sequence[np.ndarray]
) -> tuple[str, tuple[np.ndarray, ...]]:
    """Writes the number of its image after each mark; a text without images is unchanged.

    Args:
      text: Text of an observation.
      images: Images of its marks, in order.
      earlier_images: Images of texts that were numbered before; numbers continue after them.

    Returns:
      The text, and `earlier_images` with `images` after them.

    Raises:
      InputError: The text of an observation with images has more or fewer marks than images.
    """
    marks = text.count(IMAGE)
    if images and marks != len(images):
        raise InputError(
            f"an observation has {len(images)} image(s) and {marks} {IMAGE} in its text",
            key="config.env.name",
            fix=f"let the environment write one {IMAGE} for each image",
        )
    if images:
        numbers = itertools.count(len(earlier_images))
        text = re.sub(IMAGE, lambda mark: f"{mark[0]}\ue000{next(numbers)}\ue000", text)
    return text, (*earlier_images, *images)


class ImageReader(TextReader):
    """Reader of the texts of a prompt with images.

    Attributes:
      images: Images of all texts so far; the marks in the texts have their numbers.
    """

    has_images = True

    def __init__(self, images: Sequence[np.ndarray]) -> None:
        """Starts with images of the template."""
        self.images = tuple(images)

    def read_text(self, text: str, images: Sequence[np.ndarray] = ()) -> str:
        """Prepares a text: numbers the marks of `images`, and disarms other marks."""
        text = super().read_text(text)
        if images:
            text, self.images = number_images(text, images, self.images)
        else:
            # A mark in text that has no image would take the image of a later mark.
            text = text.replace(IMAGE, _PLAIN_MARK)
        return text

    def collect_images(self, text: str) -> tuple[str, tuple[np.ndarray, ...]]:
        """Removes the numbers after the marks, and returns the text and the images of its marks."""
        numbers = _NUMBERED_MARK.findall(text)
        images = tuple(self.images[int(number)] for number in numbers)
        return _NUMBERED_MARK.sub(IMAGE, text), images
