"""Checksums of weights, the same for a pushed file, for its tensors as they are written, and for a model folder.

Needs the standard library alone: it also runs inside vLLM's workers.
"""

import hashlib
import mmap
import pathlib
import zlib
from typing import Any

from gigpo_jax.models.safetensors_file import SUFFIX, Entry, parse_header


class Checksum:
    """A checksum over tensors, in any order: names, types, shapes and the CRC-32 of each, hashed together."""

    def __init__(self) -> None:
        self._lines: dict[str, str] = {}

    def add(self, name: str, dtype: str, shape: Any, data: Any) -> None:
        """Adds a tensor; `dtype` is as in safetensors ("BF16"), `data` are its bytes, little-endian and contiguous."""
        self._lines[name] = f"{name} {dtype} {list(shape)} {zlib.crc32(data):08x}\n"

    def add_file(self, entries: dict[str, Entry], data: mmap.mmap) -> None:
        """Adds all tensors of a file that is mapped into memory."""
        for name, entry in entries.items():
            with memoryview(data) as view, view[entry.start : entry.end] as part:
                self.add(name, entry.dtype, entry.shape, part)

    def hexdigest(self) -> str:
        """The checksum; "" without tensors."""
        lines = "".join(line for _, line in sorted(self._lines.items()))
        return hashlib.blake2b(lines.encode(), digest_size=16).hexdigest() if lines else ""


def folder_checksum(folder: pathlib.Path) -> str:
    """The checksum of a model folder's tensors, however they are spread over files; "" if there are none.

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
