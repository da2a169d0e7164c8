"""Images as PNG files, with zlib alone. Source: the PNG specification, ISO/IEC 15948."""

import struct
import zlib

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB, _PALETTE = 2, 3  # colour types
_NONE, _UP = 0, 2  # filters: each byte as it is; minus the one above


def encode_png(image: np.ndarray) -> bytes:
    """An image as a PNG file: 8 bits a pixel and a palette up to 256 colours, else 8 bits a channel, RGB.

    Args:
      image: uint8 [H, W, 3].
    """
    height, width, _ = image.shape
    red, green, blue = np.moveaxis(image.astype(np.uint32), 2, 0)
    pixels = red << 16 | green << 8 | blue
    colours = np.unique(pixels)
    if len(colours) <= 256:
        kind, method, rows = _PALETTE, _NONE, np.searchsorted(colours, pixels).astype(np.uint8)
        palette = [(b"PLTE", colours.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 1:].tobytes())]
    else:
        kind, method, palette = _RGB, _UP, []
        rows = np.diff(image.reshape(height, -1), axis=0, prepend=np.zeros((1, 3 * width), np.uint8))
    lines = np.insert(rows, 0, method, axis=1)
    header = struct.pack("!IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = [(b"IHDR", header), *palette, (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b"")]
    return _SIGNATURE + b"".join(_chunk(name, data) for name, data in parts)


def png_size(data: bytes) -> tuple[int, int]:
    """Height and width of a PNG file in pixels; raises ValueError if it is none."""
    if data[:8] != _SIGNATURE or data[12:16] != b"IHDR" or len(data) < 24:
        raise ValueError(f"no PNG file: {data[:16]!r}")
    width, height = struct.unpack_from("!II", data, 16)
    return height, width


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))
