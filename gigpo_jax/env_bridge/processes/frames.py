"""Frames between the pool and a worker process: a 4-byte length and that many bytes.

Calls to a worker are pickles. Its answers are not (answers.py): reading a pickle can run code, and
an environment can write anything to its socket.
"""

import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Bytes of a frame, more than any list of tasks has. A text that an environment writes to its
# socket starts with a larger number, so it is refused at once.
_MAX_SIZE = 1 << 28
_SIZE = struct.Struct("!I")


@dataclass(frozen=True)
class WorkerSetup:
    """The first message to a worker.

    Attributes:
      build: Builder of the environment, "module:NAME".
      options: Keyword arguments of the builder.
      sys_path: Import path of the pool's process.
    """

    build: str
    options: Mapping[str, Any]
    sys_path: tuple[str, ...]


def pack_frame(body: bytes) -> bytes:
    """Puts the length before a body."""
    return _SIZE.pack(len(body)) + body


def split_frames(buffer: bytearray) -> list[bytes]:
    """Removes a buffer's complete frames and returns their bodies.

    Raises:
      ValueError: A frame is too long.
    """
    bodies = []
    start = 0
    while len(buffer) - start >= _SIZE.size:
        (size,) = _SIZE.unpack_from(buffer, start)
        # Refused before the bytes arrive: the buffer would grow to that size first.
        if size > _MAX_SIZE:
            raise ValueError(f"a frame of {size:,} bytes; allowed: at most {_MAX_SIZE:,}")
        end = start + _SIZE.size + size
        if len(buffer) < end:
            break
        # A view, because a slice of a bytearray is a copy, and `bytes` would copy it again.
        bodies.append(bytes(memoryview(buffer)[start + _SIZE.size : end]))
        start = end
    # Once for all frames: each deletion moves the rest of the buffer.
    del buffer[:start]
    return bodies


def pack_call(message: object) -> bytes:
    """Encodes a setup or a call as a frame."""
    return pack_frame(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def parse_call(body: bytes) -> Any:
    """Decodes a setup or a call, which come from the pool alone."""
    return pickle.loads(body)
