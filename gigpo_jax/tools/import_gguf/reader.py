"""Reads a GGUF file: its metadata and tensors, with errors that name the file.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The package gguf dequantizes
the blocks. Its own reader is not used: it takes the counts of a broken file at their word, up to
2**64 values beyond the end of the file, and needs 3 s for the 100,000 texts of a tokenizer.
"""

import importlib
import math
import mmap
import struct
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gigpo_jax.core.errors import InputError, first_line

# Types of weights that are known to be dequantized right.
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
FIX = "download or copy the file again"
_PLAIN = {"F32": "<f4", "F16": "<f2"}  # the package takes the others as bytes
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # equal but for files of big-endian machines
_ALIGNMENT = 32  # bytes, where the metadata has none
_SCALARS = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING = 8
_ARRAY = 9
_DEPTH = 4  # arrays in arrays; a broken file could nest them without end
_DIMENSIONS = 4
# Smallest sizes, bytes: a text or an array has its length, metadata also a type and a value, a
# tensor its dimensions, one of them, a type and an offset.
_LENGTH_SIZE = 8
_FIELD_SIZE = _LENGTH_SIZE + 4 + 1
_TENSOR_SIZE = _LENGTH_SIZE + 4 + 8 + 4 + 8


class Tensor(NamedTuple):
    """One tensor of a file.

    Attributes:
      type: Name of its type, one of `TYPES`.
      shape: Shape as transformers stores it, [out, in] or [out].
      start: Index in the file of its first byte.
      size: Number of its bytes.
    """

    type: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True)
class GgufFile:
    """An open file.

    Attributes:
      path: Path of the file.
      fields: Metadata by key: numbers, texts and lists of them.
      tensors: Tensors by name.
      data: The file, mapped into memory.
    """

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    data: mmap.mmap

    def get(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """Returns a value of the metadata.

        Raises:
          InputError: There is none, or it is of another type.
        """
        if key not in self.fields:
            raise InputError(f"has no {key}", key=self.path, fix=FIX)
        value = self.fields[key]
        if not isinstance(value, kind):
            raise InputError(f"{key} is {value!r:.60}", key=self.path, fix=FIX)
        return value

    @property
    def architecture(self) -> str:
        """The architecture's name, such as "llama"; the prefix of its keys."""
        return str(self.get("general.architecture", str))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor.

        Raises:
          InputError: There is no such tensor.
        """
        if name not in self.tensors:
            raise InputError(f"has no tensor {name}", key=self.path, fix=FIX)
        return self.tensors[name].shape

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor as float32."""
        package = importlib.import_module("gguf")
        tensor = self.tensors[name]
        data = np.frombuffer(self.data, np.uint8, tensor.size, tensor.start)
        rows = data.reshape(*tensor.shape[:-1], -1)
        if tensor.type in _PLAIN:
            rows = rows.view(_PLAIN[tensor.type])
        kind = package.GGMLQuantizationType[tensor.type]
        return np.asarray(package.dequantize(rows, kind), np.float32)


def open_gguf(path: Path) -> GgufFile:
    """Opens a file and checks that all of it is there.

    Raises:
      InputError: There is no such file, it is no GGUF file, is cut short, has weights of a type
        that is not supported; or the package `gguf` is missing.
    """
    if not path.is_file():
        raise InputError("no such file", key="FILE", value=path, fix="give a GGUF file")
    try:
        package = importlib.import_module("gguf")
    except ImportError as error:
        raise InputError(
            f"needs the package gguf ({first_line(error)})",
            fix="pip install --no-deps gguf==0.19.0",
        ) from error
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise InputError("is no GGUF file", key="FILE", value=path, fix="give a GGUF file")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        raise InputError(reason, key="FILE", value=path, fix="give a GGUF file") from error
    try:
        fields, places, base = _read_header(_Cursor(data, len(_MAGIC)))
        tensors = {}
        for name, shape, number, offset in places:
            kind = _type_name(package, number)
            if kind not in TYPES:
                raise InputError(
                    f"{name} has the type {kind}, which is not supported",
                    key="FILE",
                    value=path,
                    fix=f"choose a file of {', '.join(TYPES)}",
                )
            block = package.GGML_QUANT_SIZES[package.GGMLQuantizationType(number)]
            tensors[name] = _place_tensor(name, kind, shape, block, base + offset, len(data))
    except ValueError as error:  # UnicodeDecodeError is one
        reason = f"broken or cut short ({first_line(error)})"
        raise InputError(reason, key="FILE", value=path, fix=FIX) from error
    return GgufFile(path, fields, tensors, data)


def _type_name(package: Any, number: int) -> str:
    types = {member.value: member.name for member in package.GGMLQuantizationType}
    return str(types.get(number, number))


def _read_header(
    cursor: "_Cursor",
) -> tuple[dict[str, Any], list[tuple[str, tuple[int, ...], int, int]], int]:
    """Returns the metadata; name, shape, type and offset of each tensor; and where these begin."""
    version = cursor.number("<u4")
    if version not in _VERSIONS:
        raise ValueError(f"version {version}, known are 2 and 3, little-endian")
    tensor_count = cursor.count(_TENSOR_SIZE)
    field_count = cursor.count(_FIELD_SIZE)
    fields: dict[str, Any] = {}
    for _ in range(field_count):
        key = cursor.new_name(fields)
        fields[key] = cursor.value(cursor.number("<u4"))
    places = []
    names: set[str] = set()
    for _ in range(tensor_count):
        name = cursor.new_name(names)
        names.add(name)
        dimensions = cursor.number("<u4")
        if not 1 <= dimensions <= _DIMENSIONS:
            raise ValueError(f"{name} has {dimensions} dimensions")
        shape = tuple(cursor.numbers("<u8", dimensions)[::-1])
        places.append((name, shape, cursor.number("<u4"), cursor.number("<u8")))
    alignment = fields.get("general.alignment", _ALIGNMENT)
    if type(alignment) is not int or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r:.60}")
    return fields, places, -(-cursor.offset // alignment) * alignment


def _place_tensor(
    name: str, kind: str, shape: tuple[int, ...], block: tuple[int, int], start: int, end: int
) -> Tensor:
    numbers, num_bytes = block
    if 0 in shape or shape[-1] % numbers:
        raise ValueError(f"{name} has shape {list(shape)} in blocks of {numbers}")
    size = math.prod(shape) // numbers * num_bytes
    if start + size > end:
        raise ValueError(f"{name} ends at byte {start + size} of {end}")
    return Tensor(kind, shape, start, size)


class _Cursor:
    """A place in a file whose methods read and move on; ValueError at the end of the file."""

    def __init__(self, data: mmap.mmap, offset: int) -> None:
        self._data = data
        self.offset = offset

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self.offset:
            raise ValueError(f"{size} bytes at byte {self.offset} of {len(self._data)}")
        start = self.offset
        self.offset += size
        return self._data[start : self.offset]

    def numbers(self, dtype: str, count: int) -> list[Any]:
        size = np.dtype(dtype).itemsize * count
        values: list[Any] = np.frombuffer(self.take(size), dtype).tolist()
        return values

    def number(self, dtype: str) -> Any:
        (value,) = self.numbers(dtype, 1)
        # The shortest decimal that is the same number in float32: 1e-05, not 9.99999974e-06.
        return float(str(np.float32(value))) if dtype == "<f4" else value

    def text(self) -> str:
        (size,) = struct.unpack("<Q", self.take(8))
        return self.take(size).decode()

    def count(self, size: int) -> int:
        """A number of things that take at least `size` bytes each."""
        count: int = self.number("<u8")
        if count * size > len(self._data) - self.offset:
            raise ValueError(f"{count} things at byte {self.offset} of {len(self._data)}")
        return count

    def new_name(self, names: Container[str]) -> str:
        """A name that is not in `names`; in a damaged file an empty one repeats to its end."""
        name = self.text()
        if name in names:
            raise ValueError(f"{name!r:.60} is there twice")
        return name

    def value(self, kind: int, depth: int = 0) -> Any:
        """A value of the metadata, by the number of its type."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth == _DEPTH:
            raise ValueError(f"value of type {kind} at byte {self.offset}")
        inner = self.number("<u4")
        if inner in _SCALARS:
            return self.numbers(_SCALARS[inner], self.number("<u8"))
        return [self.value(inner, depth + 1) for _ in range(self.count(_LENGTH_SIZE))]
