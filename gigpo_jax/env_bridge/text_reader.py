"""Reads texts of an environment for a template; `image_marks` reads texts with images."""

from collections.abc import Sequence

import numpy as np


class TextReader:
    """Reader of an environment's texts for a template, in a prompt without images.

    Attributes:
      has_images: Whether the prompt has any image.
    """

    has_images = False

    def read_text(self, text: str, images: Sequence[np.ndarray] = ()) -> str:
        """Prepares a text for the template; every tokenizer accepts the result."""
        # Tokenizers refuse lone surrogates, which an environment may emit. They become question
        # marks.
        return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")

    def collect_images(self, text: str) -> tuple[str, tuple[np.ndarray, ...]]:
        """Returns a rendered text, and the images of its marks."""
        return text, ()
