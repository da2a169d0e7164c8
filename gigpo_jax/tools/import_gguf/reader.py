"""Opens a GGUF file: its metadata and tensors, with errors that name the file."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError, first_line

# Types of weights that are known to be dequantized right.
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
FIX = "download or copy the file again"


@dataclass(frozen=True)
class GgufFile:
    """An open file.

    Attributes:
      path: Path of the file.
      fields: Metadata by key: numbers, texts and lists of them.
      tensors: Tensors of the package `gguf` by name; their data is a memory map.
    """

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, Any]

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
        """The shape of a tensor as transformers stores it, [out, in].

        Raises:
          InputError: There is no such tensor.
        """
        if name not in self.tensors:
            raise InputError(f"has no tensor {name}", key=self.path, fix=FIX)
        return tuple(int(size) for size in reversed(self.tensors[name].shape))

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor as float32, [out, in].

        Raises:
          InputError: Its type is not supported.
        """
        tensor = self.tensors[name]
        return dequantize(tensor).reshape(self.shape(name))


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
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise InputError("is no GGUF file", key="FILE", value=path, fix="give a GGUF file")
    try:
        reader = package.GGUFReader(path)
        fields = {key: field.contents() for key, field in reader.fields.items()}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    # Whatever the bytes of a damaged file happen to mean to the package.
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        reason = f"broken or cut short ({first_line(error)})"
        raise InputError(reason, key="FILE", value=path, fix=FIX) from error
    for tensor in tensors.values():
        if tensor.tensor_type.name not in TYPES:
            raise InputError(
                f"{tensor.name} has the type {tensor.tensor_type.name}, which is not supported",
                key="FILE",
                value=path,
                fix=f"choose a file of {', '.join(TYPES)}",
            )
    return GgufFile(path, fields, tensors)


def dequantize(tensor: Any) -> np.ndarray:
    """Returns the weights of a tensor as float32."""
    package = importlib.import_module("gguf")
    return np.asarray(package.dequantize(tensor.data, tensor.tensor_type), np.float32)
