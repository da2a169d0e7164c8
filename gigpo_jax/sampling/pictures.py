"""The images of requests: each is encoded once, and its features stand in the rows of all prompts that show it."""

import collections
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gigpo_jax.models.images import ReadImage
from gigpo_jax.models.vision import Features, pack_images
from gigpo_jax.sampling.programs import Programs
from gigpo_jax.sampling.request import Request

PATCHES = 16  # images are padded to a multiple of this
KEPT = 256  # images whose features stay on the host


class ImageEncoder:
    """Features of images by the vision tower.

    An image is padded to a size that follows from it alone and is encoded in batches of a fixed size, so its features
    do not depend on other images.
    """

    def __init__(self, programs: Programs, *, number: int) -> None:
        """`number`: images of a call."""
        self._programs, self._number = programs, number
        self._kept: dict[bytes, np.ndarray] = {}

    def clear(self) -> None:
        """Forgets all features: they are of other weights."""
        self._kept.clear()

    def encode(self, params: Any, requests: Sequence[Request]) -> None:
        """Sets the features of requests."""
        shown = [(request, request.images.images) for request in requests if request.images and request.images.images]
        missing: dict[int, dict[bytes, ReadImage]] = collections.defaultdict(dict)
        for _, images in shown:
            for image in images:
                if image.digest not in self._kept:
                    missing[-(-len(image.patches) // PATCHES) * PATCHES][image.digest] = image
        for longest, new in sorted(missing.items()):
            self._encode(params, list(new.values()), longest)
        for request, images in shown:
            for image in images:
                self._kept[image.digest] = self._kept.pop(image.digest)  # the newest last
            request.features = np.concatenate([self._kept[image.digest] for image in images])
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    def _encode(self, params: Any, left: list[ReadImage], longest: int) -> None:
        while left:
            batch, left = left[: self._number], left[self._number :]
            none = np.zeros((0, 0), np.int32)
            packed = pack_images(batch, none, number=self._number, longest=longest)
            features = np.asarray(self._programs.encode(params, packed.patches, packed.grid))
            for row, image in zip(features, batch):
                self._kept[image.digest] = row[: math.prod(image.grid)].copy()


class PictureRows:
    """What `slots.admit` and `slots.extend` take beside rows of tokens.

    Attributes:
      message: positions [B, 3, T], shifts [B] and `Features`.
    """

    def __init__(self, rows: int, length: int, width: int, dtype: Any) -> None:
        """Of rows without images, B x T, for a decoder of that width."""
        features = Features(np.zeros((rows, length, width), dtype), np.zeros((rows, length), bool))
        self.message = np.zeros((rows, 3, length), np.int32), np.zeros((rows,), np.int32), features

    def put(self, row: int, request: Request, start: int, stop: int) -> None:
        """Writes what belongs to the tokens from `start` to `stop` of a prompt."""
        assert request.images is not None  # of a model that reads images
        layout, (positions, shift, features) = request.images.layout, self.message
        index = layout.index[start:stop]
        positions[row, :, : len(index)], shift[row] = layout.positions[:, start:stop], layout.shift
        features.used[row, : len(index)] = index >= 0
        if request.features is not None:
            features.values[row, : len(index)][index >= 0] = request.features[index[index >= 0]]
