"""PNG files: what another program reads in them is the image."""

import io
import struct
import zlib

import numpy as np
import pytest
from matplotlib.image import imread

from gigpo_jax.core.png import encode_png, png_size


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (168, 168), (28, 336)])
def test_another_program_reads_the_same_image(shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    few = (
        np.random.default_rng(0)
        .choice(np.arange(256, dtype=np.uint8)[:, None] * [[1, 3, 7]], shape)
        .astype(np.uint8)
    )
    for each in (image, image[::-1, ::-1, ::-1], few, np.zeros_like(image)):
        found = imread(io.BytesIO(encode_png(each)), format="png")[..., :3]
        np.testing.assert_array_equal(np.rint(found * 255).astype(np.uint8), each)
        assert png_size(encode_png(each)) == shape


def test_the_chunks_are_those_of_the_specification() -> None:
    image = (
        np.arange(257)[None, :, None].repeat(3, 2) // [1, 16, 256] % 256
    )  # 257 colours; a palette has 256
    image = image.astype(np.uint8)
    check_chunks(encode_png(image), [b"IHDR", b"IDAT", b"IEND"], (257, 1, 8, 2))
    check_chunks(encode_png(image[:, 1:]), [b"IHDR", b"PLTE", b"IDAT", b"IEND"], (256, 1, 8, 3))
    assert len(encode_png(np.zeros((168, 168, 3), np.uint8))) < 1000


def check_chunks(data: bytes, names: list[bytes], header: tuple[int, int, int, int]) -> None:
    assert data[:8] == bytes((137, 80, 78, 71, 13, 10, 26, 10))
    kinds = []
    place = 8
    while place < len(data):
        length, kind = struct.unpack_from("!I4s", data, place)
        body = data[place + 8 : place + 8 + length]
        assert struct.unpack_from("!I", data, place + 8 + length)[0] == zlib.crc32(kind + body)
        kinds.append(kind)
        place += 12 + length
    assert kinds == names
    assert struct.unpack_from("!IIBB", data, 16) == header


def test_what_is_no_png_file_has_no_size() -> None:
    data = encode_png(np.zeros((2, 3, 3), np.uint8))
    for bad in (b"", b"<svg>", data[:20], data[:12] + b"JUNK" + data[16:]):
        with pytest.raises(ValueError, match="no PNG file"):
            png_size(bad)
