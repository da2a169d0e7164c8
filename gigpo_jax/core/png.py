"""Images as PNG files, with zlib alone. Source: the PNG specification, ISO/IEC 15948."""

import struct
import zlib

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Colour types
_RGB = 2
_PALETTE = 3
# Filters of a row: every byte as it is; every byte minus the one above it
_NONE = 0
_UP = 2


def encode_png(image: np.ndarray) -> bytes:
    """Encodes an image as a PNG file, with a palette up to 256 colours and else as RGB.

    Args:
      image: Pixels, uint8 [H, W, 3].
    """
    height, width, _ = image.shape
    # A colour as one integer, [H, W]: `unique` then sorts numbers, not rows of three.
    red, green, blue = np.moveaxis(image.astype(np.uint32), 2, 0)
    pixels = red << 16 | green << 8 | blue
    colours = np.unique(pixels)
    chunks: list[tuple[bytes, bytes]] = []
    # The pictures of the small worlds have few colours: a palette makes them three times smaller.
    if len(colours) <= 256:
        colour_type = _PALETTE
        row_filter = _NONE
        # `colours` is sorted, so a position in it is the index into the palette.
        rows = np.searchsorted(colours, pixels).astype(np.uint8)
        # Big-endian bytes are 0, red, green, blue.
        palette = colours.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 1:]
        chunks.append((b"PLTE", palette.tobytes()))
    else:
        colour_type = _RGB
        # Neighbouring rows are alike, and the differences compress well. uint8 wraps around, as the
        # specification asks for.
        row_filter = _UP
        black_row = np.zeros((1, 3 * width), np.uint8)
        rows = np.diff(image.reshape(height, -1), axis=0, prepend=black_row)
    # Every row begins with the number of its filter.
    lines = np.insert(rows, 0, row_filter, axis=1)
    chunks.append((b"IDAT", zlib.compress(lines.tobytes(), 6)))
    # 8 bits a sample; zlib, the standard filters, no interlacing.
    header = struct.pack("!IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    chunks = [(b"IHDR", header), *chunks, (b"IEND", b"")]
    return _SIGNATURE + b"".join(_encode_chunk(name, data) for name, data in chunks)


def png_size(data: bytes) -> tuple[int, int]:
    """Returns height and width of a PNG file, in pixels.

    Raises ValueError for other files.
    """
    # IHDR must be the first chunk, so the size stands at a fixed place.
    if data[:8] != _SIGNATURE or data[12:16] != b"IHDR" or len(data) < 24:
        raise ValueError(f"no PNG file: {data[:16]!r}")
    width, height = struct.unpack_from("!II", data, 16)
    return height, width


def _encode_chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(name + data)
    return struct.pack("!I", len(data)) + name + data + struct.pack("!I", checksum)
