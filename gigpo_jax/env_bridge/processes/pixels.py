"""Images in the answer of a worker process."""

from typing import Any

import numpy as np


def decode_images(shapes: Any, pixels: bytes) -> tuple[np.ndarray, ...]:
    """Reads images from the bytes of all; may raise an exception of any type."""
    images = []
    offset = 0
    for height, width in shapes:
        # Before the product: a negative size would move the offset back.
        if type(height) is not int or type(width) is not int or height < 1 or width < 1:
            raise ValueError(f"an image of {height!r:.40} x {width!r:.40} pixels")
        size = height * width * 3
        image = np.frombuffer(pixels, np.uint8, size, offset).reshape(height, width, 3)
        # A copy is writable, and does not keep the whole frame in memory.
        images.append(image.copy())
        offset += size
    # More bytes than the shapes say: another image was meant. Fewer have raised in `frombuffer`.
    if offset != len(pixels):
        raise ValueError(f"{len(pixels):,} bytes of pixels for images of {offset:,}")
    return tuple(images)
