"""Pictures of saved rollouts, and of the sample that loggers show."""

from collections.abc import Iterator, Sequence

from gigpo_jax.core.png import encode_png, png_size
from gigpo_jax.env_bridge.types import IMAGE
from gigpo_jax.models.vision.images import restore_pixels
from gigpo_jax.run.loggers.loggers import as_code_block
from gigpo_jax.trajectory import Turn


def encode_pictures(turn: Turn, png_files: dict[bytes, bytes]) -> tuple[bytes, ...]:
    """Returns the images of a turn's prompt as PNG files.

    Args:
      turn: Turn with images.
      png_files: PNG files by the digest of an image, encoded once; new ones are added.
    """
    assert turn.images is not None
    images = turn.images.images
    # The last ones: `prompt` has no marks of images of earlier messages of a conversation.
    shown_images = images[len(images) - turn.prompt.count(IMAGE) :]
    for image in shown_images:
        if image.digest not in png_files:
            png_files[image.digest] = encode_png(restore_pixels(image))
    return tuple(png_files[image.digest] for image in shown_images)


def picture_lines(
    pictures: Sequence[bytes], anchor: str, numbers: Iterator[int], name: str
) -> list[str]:
    """Returns the sizes of a step's pictures, which loggers have under `name`, and its state."""
    lines = []
    for picture, number in zip(pictures, numbers):
        height, width = png_size(picture)
        lines += [f"Picture {number} of `{name}`, {width} x {height} pixels", ""]
    return [*lines, "Anchor state", "", as_code_block(anchor), ""]
