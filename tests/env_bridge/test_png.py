"""PNG files: what another program reads in them is the image."""

import io
import struct
import zlib

import numpy as np
import pytest
from matplotlib.image import imread

from gigpo_jax.env_bridge.png import encode_png


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (168, 168), (28, 336)])
def test_another_program_reads_the_same_image(shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    for each in (image, image[::-1, ::-1, ::-1], np.zeros_like(image)):
        found = imread(io.BytesIO(encode_png(each)), format="png")
        np.testing.assert_array_equal(np.rint(found * 255).astype(np.uint8), each)


def test_the_chunks_are_those_of_the_specification() -> None:
    data = encode_png(np.full((2, 3, 3), 7, np.uint8))
    assert data[:8] == bytes((137, 80, 78, 71, 13, 10, 26, 10))
    kinds, place = [], 8
    while place < len(data):
        length, kind = struct.unpack_from("!I4s", data, place)
        body = data[place + 8 : place + 8 + length]
        assert struct.unpack_from("!I", data, place + 8 + length)[0] == zlib.crc32(kind + body)
        kinds.append(kind)
        place += 12 + length
    assert kinds == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack_from("!IIBB", data, 16) == (3, 2, 8, 2)
    assert len(encode_png(np.zeros((168, 168, 3), np.uint8))) < 1000
