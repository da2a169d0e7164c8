"""The images of packed samples: each distinct image once a microbatch.

Shapes: M microbatches, B rows, T tokens in a row.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from gigpo_jax.learner.rows import TextPlacement
from gigpo_jax.learner.samples import Sample
from gigpo_jax.models.vision.images import ImagePatches, Layout, PromptImages, distinct_images
from gigpo_jax.models.vision.vision import pack_images
from gigpo_jax.rl.types import StepBatch


class MicrobatchImages(NamedTuple):
    """The images of a microbatch.

    Attributes:
      images: distinct images of the microbatch.
      placements: places of its texts in the minibatch.
      indices: feature of each token of each text's last prompt, [P] i32, counted over the images.
      patch_values: C, numbers in a patch; 0 without a prompt that knows it.
    """

    images: list[ImagePatches]
    placements: list[TextPlacement]
    indices: list[np.ndarray]
    patch_values: int


def image_capacity(longest: int, rows: int) -> int:
    """Returns the number of images that a microbatch has room for, one of few sizes.

    It is a multiple of `rows`, the rows of the microbatch, because devices share them.
    """
    capacity = rows
    while capacity < longest:
        capacity *= 2
    return capacity


def add_images(
    batches: Iterator[StepBatch],
    placements: Sequence[Sequence[TextPlacement]],
    shape: tuple[int, int, int],
    gather: Callable[[np.ndarray], np.ndarray],
) -> Iterator[StepBatch]:
    """Adds the images of their samples to minibatches; rotary positions then have three axes.

    Args:
      batches: minibatches without images.
      placements: places of the texts of each minibatch.
      shape: (M, B, T).
      gather: function that gathers [k] i64 of every host, [hosts, k].
    """
    stored, rows, _ = shape
    # The images of all minibatches first: the largest numbers among them give one shape for all.
    contents = []
    for places in placements:
        microbatches: list[list[TextPlacement]] = [[] for _ in range(stored)]
        for placement in places:
            microbatches[placement.row // rows].append(placement)
        contents.append([_microbatch_images(members) for members in microbatches])
    most_images = 0
    most_patches = 0
    values = 0
    for content in contents:
        for microbatch in content:
            values = max(values, microbatch.patch_values)
            most_images = max(most_images, len(microbatch.images))
            for image in microbatch.images:
                most_patches = max(most_patches, len(image.patches))
    # The largest numbers of all hosts: one shape for all, and few programs.
    limits = gather(np.array([most_images, most_patches, values], np.int64)).max(0)
    most_images, most_patches, values = limits.tolist()
    capacity = image_capacity(most_images, rows)
    for batch, content in zip(batches, contents, strict=True):
        yield _with_images(batch, content, shape, (capacity, most_patches, values))


def _microbatch_images(placements: list[TextPlacement]) -> MicrobatchImages:
    prompts = [_prompt_images(place.responses[-1].sample) for place in placements]
    images, indices = distinct_images(prompts)
    patch_values = max((prompt.patch_values for prompt in prompts), default=0)
    return MicrobatchImages(images, placements, indices, patch_values)


def _with_images(
    batch: StepBatch,
    content: Sequence[MicrobatchImages],
    shape: tuple[int, int, int],
    sizes: tuple[int, int, int],
) -> StepBatch:
    stored, rows, width = shape
    capacity, most_patches, values = sizes
    # In text, frame, row and column of a token are equal.
    positions = np.repeat(batch.positions[:, :, None], 3, axis=2)  # [M, B, 3, T]
    index = np.full((stored, rows, width), -1, np.int32)
    packed = []
    for number, microbatch in enumerate(content):
        for place, features in zip(microbatch.placements, microbatch.indices, strict=True):
            row = place.row % rows
            sample = place.responses[-1].sample
            layout = _prompt_images(sample).layout
            prompt, response = np.split(place.places, [len(sample.prompt_tokens)])
            index[number, row, prompt] = features
            row_positions = positions[number, row]
            row_positions[:, prompt] = layout.positions
            # Images take fewer positions than tokens, so the response moves back.
            row_positions[:, response] += layout.shift
        packed.append(
            pack_images(
                microbatch.images,
                index[number],
                number=capacity,
                longest=most_patches,
                values=values,
            )
        )
    images = jax.tree.map(lambda *leaves: np.stack(leaves), *packed)
    return replace(batch, positions=positions, images=images)


def _prompt_images(sample: Sample) -> PromptImages:
    """Returns the images of a sample; prompts of agent programs have none."""
    if sample.images is not None:
        return sample.images
    length = len(sample.prompt_tokens)
    positions = np.tile(np.arange(length, dtype=np.int32), (3, 1))
    return PromptImages(Layout(positions, np.full(length, -1, np.int32), 0), (), 0)
