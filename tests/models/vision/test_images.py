"""Images are read as the published processor reads them: size, resizing, patches and positions."""

import dataclasses

import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.vision.images import (
    ImagePatches,
    cut_patches,
    expand_image_tokens,
    locate_images,
    resize,
    target_size,
    token_grid,
)
from gigpo_jax.models.vision.vision import pack_images
from gigpo_jax.models.vision.vision_config import (
    NORMALIZATION,
    QWEN3_VL,
    VisionConfig,
    preprocessor_json,
)

CONFIG = VisionConfig(image_token=9, start_token=7, end_token=8)


def random_image(height: int, width: int) -> np.ndarray:
    return (
        np.random.default_rng(height * width).integers(0, 256, (height, width, 3)).astype(np.uint8)
    )


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ((96, 96), (252, 252)),
        ((300, 300), (308, 308)),
        ((520, 260), (112, 56)),
        ((31, 200), (56, 84)),
        ((5, 7), (5, 28)),
    ],
)
def test_resizing_equals_that_of_pillow_to_the_last_bit(
    source: tuple[int, int], target: tuple[int, int]
) -> None:
    pil = pytest.importorskip("PIL.Image")
    image = random_image(*source)
    expected = pil.fromarray(image).resize(target[::-1], pil.Resampling.BICUBIC)
    np.testing.assert_array_equal(resize(image, *target), np.asarray(expected))


@pytest.mark.parametrize("published", [CONFIG, QWEN3_VL], ids=["qwen2_5_vl", "qwen3_vl"])
def test_sizes_and_patches_equal_those_of_transformers(published: VisionConfig) -> None:
    pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    config = dataclasses.replace(published, max_pixels=100_000)
    processor = processors.Qwen2VLImageProcessorPil.from_dict(preprocessor_json(config))
    for size in (
        (168, 168),
        (96, 96),
        (42, 70),
        (20, 300),
        (900, 500),
    ):  # as it is, up, halves, too small, too large
        image = random_image(*size)
        theirs = processor([image], return_tensors="np")
        rows, columns = token_grid(config, image)
        assert theirs["image_grid_thw"].tolist() == [[1, 2 * rows, 2 * columns]], size
        side = config.patch_size
        frames = theirs["pixel_values"].reshape(-1, 3, 2, side**2)
        np.testing.assert_array_equal(frames[:, :, 0], frames[:, :, 1])
        mean, std = (np.array(x)[:, None] for x in NORMALIZATION[config.model_type])
        values = (cut_patches(config, image).reshape(-1, 3, side**2) / 255 - mean) / std
        np.testing.assert_allclose(values, frames[:, :, 0], atol=1e-5)


def test_odd_images_are_refused() -> None:
    with pytest.raises(InputError, match=r"float64 \[28, 28, 3\]; give uint8"):
        token_grid(CONFIG, np.zeros((28, 28, 3)))
    with pytest.raises(InputError, match=r"uint8 \[28, 28\]; give uint8"):
        token_grid(CONFIG, np.zeros((28, 28), np.uint8))
    with pytest.raises(InputError, match="at least one pixel"):
        token_grid(CONFIG, np.zeros((0, 28, 3), np.uint8))
    with pytest.raises(InputError, match="more than 200 times"):
        target_size(CONFIG, 2010, 10)


def test_positions_of_a_prompt_with_two_images() -> None:
    """By hand: an image of 2 x 3 tokens, two words, an image of one token, a word."""
    tokens = expand_image_tokens(CONFIG, [1, 7, 9, 8, 2, 9, 3], [(2, 3), (1, 1)])
    assert tokens == [1, 7, 9, 9, 9, 9, 9, 9, 8, 2, 9, 3]
    result = locate_images(CONFIG, np.array(tokens), [(2, 3), (1, 1)])
    frames = [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 8]
    rows = [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8]
    columns = [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8]
    np.testing.assert_array_equal(result.positions, [frames, rows, columns])
    np.testing.assert_array_equal(result.index, [-1, -1, 0, 1, 2, 3, 4, 5, -1, -1, 6, -1])
    assert result.shift == 9 - 12


def test_places_that_are_not_those_of_the_images_are_refused() -> None:
    with pytest.raises(InputError, match="1 places for 2 images"):
        expand_image_tokens(CONFIG, [1, 9], [(1, 1), (1, 1)])
    with pytest.raises(InputError, match="3 places for the 4 features of 1 images"):
        locate_images(CONFIG, np.array([9, 9, 9]), [(2, 2)])
    with pytest.raises(InputError, match="not in a row"):
        locate_images(CONFIG, np.array([9, 9, 1, 9, 9]), [(2, 2)])


def test_the_digest_of_an_image_is_of_its_patches_and_its_grid() -> None:
    patches = cut_patches(CONFIG, random_image(56, 84))
    image = ImagePatches(patches, (2, 3))
    changed = patches.copy()
    assert image.digest == ImagePatches(patches.copy(), (2, 3)).digest
    assert image.digest != ImagePatches(patches, (3, 2)).digest
    changed[-1, -1] ^= 1
    assert image.digest != ImagePatches(changed, (2, 3)).digest


def test_features_of_small_images_skip_the_padding_of_the_largest() -> None:
    images = [
        ImagePatches(cut_patches(CONFIG, x), token_grid(CONFIG, x))
        for x in (random_image(56, 56), random_image(56, 84))
    ]
    packed = pack_images(
        images, np.array([[-1, 0, 1, 2, 3], [4, 5, -1, 4, 9]]), number=2, longest=24, values=588
    )
    np.testing.assert_array_equal(packed.index, [[-1, 0, 1, 2, 3], [6, 7, -1, 6, 11]])
    np.testing.assert_array_equal(packed.grid, [[4, 4], [4, 6]])
    assert packed.patches.shape == (2, 24, 588)
    assert not packed.patches[0, 16:].any()
