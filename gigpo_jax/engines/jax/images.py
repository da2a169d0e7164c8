"""The images of requests: encoding them, and placing their features in rows of prompts."""

import collections
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.engines.jax.image_inputs import ImageInputs
from gigpo_jax.engines.jax.placement import SLOTS
from gigpo_jax.engines.jax.programs import Programs
from gigpo_jax.engines.request import Request
from gigpo_jax.models.decoder import DecoderConfig, Params
from gigpo_jax.models.vision.images import ImagePatches
from gigpo_jax.models.vision.vision import Features, encode_images, pack_images

PATCH_MULTIPLE = 16  # the number of patches of an image is padded to a multiple of this
CACHED_IMAGES = 256  # images whose features stay on the host


def run_vision_tower(
    programs: Programs, params: Params, patches: np.ndarray, grid: np.ndarray
) -> jax.Array:
    """Runs the vision tower; arguments and result as for `vision.encode_images`."""
    vision = programs.config.vision
    assert vision is not None

    def encode_step(params: Any, cache: Any, state: Any, images: Any) -> tuple[Any, Any, jax.Array]:
        features = encode_images(vision, params["vision"], *images, dtype=programs.dtype)
        # Cache and slots pass through, so that all programs have one signature. They are
        # donated: returning them copies nothing.
        return cache, state, programs.placement.replicate(features)

    name = ("encode", *patches.shape)
    return programs.run_step(name, encode_step, params, (patches, grid), (SLOTS,))


class ImageEncoder:
    """Computes and caches image features with the vision tower.

    An image is padded to a size that follows from the image alone and is encoded in batches of a
    fixed size, so its features do not depend on other images.
    """

    def __init__(self, programs: Programs, *, batch_size: int) -> None:
        """Creates an empty cache; a device call encodes `batch_size` images."""
        self._programs = programs
        self._batch_size = batch_size
        self._features: dict[bytes, np.ndarray] = {}

    def clear(self) -> None:
        """Drops all features, which belong to other weights."""
        self._features.clear()

    def encode_requests(self, params: Any, requests: Sequence[tuple[Request, int]]) -> None:
        """Sets the features of requests; an image is encoded once.

        Args:
          params: Parameters of the model.
          requests: Requests, and the first token that is read of each; images before it are left
            out.
        """
        requests_with_images = []
        for request, start in requests:
            images = _select_images(request, start)
            if images:
                requests_with_images.append((request, images))

        # padded size -> digest -> image: each size is a program, and equal images are encoded once.
        missing: dict[int, dict[bytes, ImagePatches]] = collections.defaultdict(dict)
        for _, images in requests_with_images:
            for image in images:
                if image.digest not in self._features:
                    padded_patches = -(-len(image.patches) // PATCH_MULTIPLE) * PATCH_MULTIPLE
                    missing[padded_patches][image.digest] = image
        for padded_patches, new_images in sorted(missing.items()):
            self._encode_images(params, list(new_images.values()), padded_patches)

        for request, images in requests_with_images:
            for image in images:
                # Moves the image to the end: the dictionary's order is that of last use.
                self._features[image.digest] = self._features.pop(image.digest)
            request.features = np.concatenate([self._features[image.digest] for image in images])
        # Only now, because one batch of requests may have more images than the cache keeps.
        while len(self._features) > CACHED_IMAGES:
            del self._features[next(iter(self._features))]

    def _encode_images(self, params: Any, images: list[ImagePatches], padded_patches: int) -> None:
        # Places in texts are not needed here: `ImageRows` puts the features into rows.
        no_rows = np.zeros((0, 0), np.int32)
        for start in range(0, len(images), self._batch_size):
            batch = images[start : start + self._batch_size]
            packed = pack_images(
                batch,
                no_rows,
                number=self._batch_size,
                longest=padded_patches,
                values=batch[0].patches.shape[1],
            )
            encoded = run_vision_tower(self._programs, params, packed.patches, packed.grid)
            # Copies: a slice would keep the features of the whole batch in memory.
            for row, image in zip(np.asarray(encoded), batch):
                self._features[image.digest] = row[: math.prod(image.grid)].copy()


def _select_images(request: Request, start: int) -> list[ImagePatches]:
    """Selects the images that a request reads from `start` on, and sets its first feature."""
    if request.images is None:
        return []
    held_features = int(np.sum(request.images.layout.index[:start] >= 0))
    images = list(request.images.images)
    request.first_feature = 0
    while images and request.first_feature + math.prod(images[0].grid) <= held_features:
        request.first_feature += math.prod(images.pop(0).grid)
    return images


class ImageRows:
    """Builds the image inputs of a `PromptBatch`.

    Attributes:
      inputs: Images of the rows written so far.
    """

    def __init__(self, rows: int, length: int, width: int, dtype: Any) -> None:
        """Creates B x T rows without images; `width` is the width of a feature."""
        self.inputs = ImageInputs(
            positions=np.zeros((rows, 3, length), np.int32),
            shift=np.zeros((rows,), np.int32),
            features=Features(
                np.zeros((rows, length, width), dtype), np.zeros((rows, length), bool)
            ),
        )

    def write_row(self, row: int, request: Request, start: int, stop: int) -> None:
        """Writes the images of a prompt's tokens from `start` to `stop` into a row."""
        assert request.images is not None  # a model that reads images: its prompts have a layout
        layout = request.images.layout
        index = layout.index[start:stop]
        is_image = index >= 0
        length = len(index)
        features = self.inputs.features
        self.inputs.positions[row, :, :length] = layout.positions[:, start:stop]
        self.inputs.shift[row] = layout.shift
        features.used[row, :length] = is_image
        if request.features is not None:
            feature_index = index[is_image] - request.first_feature
            features.values[row, :length][is_image] = request.features[feature_index]


def image_rows_maker(config: DecoderConfig, dtype: Any) -> Callable[[int, int], ImageRows]:
    """Returns the constructor of image inputs of a model that reads images."""
    assert config.vision is not None
    width = config.vision.feature_parts * config.hidden_size
    return functools.partial(ImageRows, width=width, dtype=jnp.dtype(dtype))
