"""The safetensors format (https://huggingface.co/docs/safetensors), read and written with the standard library alone.

A file holds the length of its header (8 bytes, little-endian), the header (JSON) and the bytes of the tensors without
gaps. This module needs neither numpy nor jax nor torch: it also runs inside vLLM's workers.
"""

import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from gigpo_jax.errors import InputError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"  # of a model in several files, or in one
SUFFIX = ".safetensors"
HEADER_LIMIT = 100_000_000  # bytes; the limit of the reference implementation
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
# Receives name, dtype as in the file ("BF16"), shape and bytes of one tensor.
OnTensor = Callable[[str, str, tuple[int, ...], Any], None]


class Entry(NamedTuple):
    """One tensor of a file.

    Attributes:
      dtype: a key of `ITEM_BYTES`.
      shape: of the tensor, row-major.
      start: index in the file of its first byte.
      end: index in the file after its last byte.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: str | os.PathLike[str]) -> dict[str, Entry]:
    """Reads and checks the header of a file: tensor name -> entry, in the order of the bytes.

    Raises:
      InputError: the file is missing, cut short, or its header is not consistent.
    """
    try:
        with open(path, "rb") as file:
            return parse_header(file, str(path))
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror}); download it again") from err


def parse_header(file: BinaryIO, name: str) -> dict[str, Entry]:
    """As `read_header`, of an open file, a memory map or `io.BytesIO`; `name` stands in the error messages."""
    file.seek(0, os.SEEK_END)
    total = file.tell()
    file.seek(0)
    size = int.from_bytes(file.read(8), "little")
    if total < 8 or size > min(HEADER_LIMIT, total - 8):
        raise _broken(name, f"{total} bytes hold no header")
    try:
        raw = json.loads(file.read(size))
        raw.pop("__metadata__", None)
        entries = {tensor: _entry(fields, 8 + size) for tensor, fields in raw.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise _broken(name, f"header: {err!r:.200}") from err
    at = 8 + size
    ordered = dict(sorted(entries.items(), key=lambda item: item[1][2:]))
    for tensor, entry in ordered.items():
        if entry.start != at:
            raise _broken(name, f"header: the bytes of {tensor} do not follow those of the tensor before")
        at = entry.end
    if at != total:
        raise _broken(name, f"{total} bytes, the header describes {at}")
    return ordered


def write_file(
    path: pathlib.Path,
    names: Iterable[tuple[str, tuple[int, ...]]],
    dtype: str,
    tensors: Iterator[Any],
    on_tensor: OnTensor | None = None,
) -> None:
    """Writes one file and waits until it is on the disk.

    Args:
      path: replaced if it exists.
      names: name and shape of each tensor.
      dtype: of all tensors, a key of `ITEM_BYTES`.
      tensors: yields the bytes of each, contiguous, in the order of `names`; no more are taken than there are names.
      on_tensor: called after each tensor was written.

    Raises:
      OSError: it cannot be written.
      ValueError: a tensor has another number of bytes than its shape asks for.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    names, start = list(names), 0
    for name, shape in names:
        end = start + math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, shape in names:
            data = next(tensors)
            if memoryview(data).nbytes != math.prod(shape) * ITEM_BYTES[dtype]:
                raise ValueError(f"{name}: {memoryview(data).nbytes} bytes for the shape {list(shape)} of {dtype}")
            out.write(data)
            if on_tensor is not None:
                on_tensor(name, dtype, shape, data)
        out.flush()
        os.fsync(out.fileno())


def _entry(fields: dict[str, Any], base: int) -> Entry:
    (start, end), shape = fields["data_offsets"], tuple(fields["shape"])
    if not all(type(number) is int and number >= 0 for number in (start, end, *shape)):
        raise ValueError(f"shape {list(shape)} and offsets {[start, end]} are not all whole numbers from 0")
    if end - start != math.prod(shape) * ITEM_BYTES[fields["dtype"]]:
        raise ValueError(f"shape {list(shape)} of {fields['dtype']} does not fit the offsets {[start, end]}")
    return Entry(fields["dtype"], shape, base + start, base + end)


def _broken(name: str, why: str) -> InputError:
    return InputError(f"{name}: broken or cut short ({why}); download or copy it again")
