"""The safetensors format (https://huggingface.co/docs/safetensors), standard library only.

A file holds the length of its header (8 bytes, little-endian), the header (JSON) and the bytes of
the tensors without gaps. This module needs neither numpy nor jax nor torch: it also runs inside
vLLM's workers.

The safetensors package is not used: it writes a file only from all of its tensors in memory, where
this module takes one at a time (191 MB and 10 MB for a file of 200 MB), and gives no offsets for
memory maps and checksums. Reading takes equal time (benchmarks/safetensors_files.py).
"""

import json
import math
import os
from typing import Any, BinaryIO, NamedTuple

from gigpo_jax.core.errors import InputError

INDEX = "model.safetensors.index.json"  # of a model in several files
SINGLE = "model.safetensors"  # of a model in one file
SUFFIX = ".safetensors"
HEADER_LIMIT = 100_000_000  # bytes; the limit of the reference implementation
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


class Entry(NamedTuple):
    """One tensor of a file.

    Attributes:
      dtype: a key of `ITEM_BYTES`.
      shape: shape of the tensor, row-major.
      start: index in the file of its first byte.
      end: index in the file after its last byte.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: str | os.PathLike[str]) -> dict[str, Entry]:
    """Reads a file's header as `parse_header` does; raises InputError also if it is missing."""
    try:
        with open(path, "rb") as file:
            return parse_header(file, str(path))
    except OSError as err:
        raise InputError(
            f"cannot be read ({err.strerror})", key=os.fspath(path), fix="download it again"
        ) from err


def parse_header(file: BinaryIO, name: str) -> dict[str, Entry]:
    """Reads and checks the header of an open file, a memory map or an `io.BytesIO`.

    Returns:
      Tensor name -> entry, in the order of the bytes.

    Raises:
      InputError: the file is cut short, or its header is not consistent.
    """
    file.seek(0, os.SEEK_END)
    total = file.tell()
    file.seek(0)
    size = int.from_bytes(file.read(8), "little")
    # Before the header is read: a broken length would ask for that much memory.
    if total < 8 or size > min(HEADER_LIMIT, total - 8):
        raise _broken_file(name, f"{total} bytes hold no header")
    try:
        raw = json.loads(file.read(size))
        raw.pop("__metadata__", None)
        entries = {tensor: _parse_entry(fields, 8 + size) for tensor, fields in raw.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise _broken_file(name, f"header: {err!r:.200}") from err
    end = 8 + size
    # By start, then by end: a tensor without bytes stands before the one at the same start.
    ordered = dict(sorted(entries.items(), key=lambda item: item[1][2:]))
    for tensor, entry in ordered.items():
        if entry.start != end:
            raise _broken_file(
                name, f"header: the bytes of {tensor} do not follow those of the tensor before"
            )
        end = entry.end
    if end != total:
        raise _broken_file(name, f"{total} bytes, the header describes {end}")
    return ordered


def _parse_entry(fields: dict[str, Any], base: int) -> Entry:
    start, end = fields["data_offsets"]
    shape = tuple(fields["shape"])
    if not all(type(number) is int and number >= 0 for number in (start, end, *shape)):
        raise ValueError(
            f"shape {list(shape)} and offsets {[start, end]} are not all whole numbers from 0"
        )
    if end - start != math.prod(shape) * ITEM_BYTES[fields["dtype"]]:
        raise ValueError(
            f"shape {list(shape)} of {fields['dtype']} does not fit the offsets {[start, end]}"
        )
    return Entry(fields["dtype"], shape, base + start, base + end)


def _broken_file(name: str, reason: str) -> InputError:
    return InputError(f"broken or cut short ({reason})", key=name, fix="download or copy it again")
