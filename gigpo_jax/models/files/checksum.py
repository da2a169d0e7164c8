"""Checksums of weights: equal for pushed tensors, their file and a model folder.

Standard library only: this module also runs inside vLLM's workers.
"""

import hashlib
import mmap
import pathlib
import zlib
from typing import Any

from gigpo_jax.models.files.safetensors_file import SUFFIX, Entry, parse_header


class Checksum:
    """A checksum over tensors in any order: a hash of names, types, shapes and CRC-32s."""

    def __init__(self) -> None:
        self._lines: dict[str, str] = {}

    def add(self, name: str, dtype: str, shape: Any, data: Any) -> None:
        """Adds a tensor.

        Args:
          name: name of the tensor.
          dtype: dtype in safetensors' spelling ("BF16").
          shape: shape of the tensor.
          data: bytes of the tensor, little-endian and contiguous.
        """
        self._lines[name] = f"{name} {dtype} {list(shape)} {zlib.crc32(data):08x}\n"

    def add_file(self, entries: dict[str, Entry], data: mmap.mmap) -> None:
        """Adds all tensors of a memory-mapped file."""
        for name, entry in entries.items():
            # Views are released at once: a map with open views cannot be closed.
            with memoryview(data) as view, view[entry.start : entry.end] as tensor:
                self.add(name, entry.dtype, entry.shape, tensor)

    def hexdigest(self) -> str:
        """Returns the checksum; "" without tensors."""
        if not self._lines:
            return ""
        # Sorted, because a folder of several files has another order than a push.
        lines = "".join(line for _, line in sorted(self._lines.items()))
        return hashlib.blake2b(lines.encode(), digest_size=16).hexdigest()


def folder_checksum(folder: pathlib.Path) -> str:
    """Returns the checksum of a model folder's tensors in all files, or "" if there are none.

    Raises:
      InputError: a file is broken.
    """
    total = Checksum()
    for file in folder.glob("*" + SUFFIX):
        with file.open("rb") as stream:
            entries = parse_header(stream, str(file))
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                total.add_file(entries, data)
    return total.hexdigest()
