"""Writing of safetensors files, tensor by tensor."""

import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gigpo_jax.models.files.safetensors_file import ITEM_BYTES

# Receives name, dtype as in the file ("BF16"), shape and bytes of one tensor.
OnTensor = Callable[[str, str, tuple[int, ...], Any], None]


def write_file(
    path: pathlib.Path,
    names: Iterable[tuple[str, tuple[int, ...]]],
    dtype: str,
    tensors: Iterator[Any],
    on_tensor: OnTensor | None = None,
) -> None:
    """Writes one file and waits until it is on disk.

    Args:
      path: path of the file; replaced if it exists.
      names: name and shape of each tensor.
      dtype: dtype of all tensors, a key of `ITEM_BYTES`.
      tensors: iterator of the bytes of each tensor, contiguous, in the order of `names`; it may
        yield more, for the next file.
      on_tensor: callback after each written tensor.

    Raises:
      OSError: it cannot be written.
      ValueError: the bytes of a tensor do not fit its shape.
    """
    # The metadata that transformers writes too; older releases of it refuse files without.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    names = list(names)
    start = 0
    for name, shape in names:
        end = start + math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    # The tensors begin at a multiple of 64 bytes, so that XLA reads them from a memory map.
    text += b" " * (-(8 + len(text)) % 64)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, shape in names:
            # Taken one at a time: the tensors together may not fit the memory.
            data = next(tensors)
            num_bytes = memoryview(data).nbytes
            if num_bytes != math.prod(shape) * ITEM_BYTES[dtype]:
                raise ValueError(
                    f"{name}: {num_bytes} bytes for the shape {list(shape)} of {dtype}"
                )
            out.write(data)
            if on_tensor is not None:
                on_tensor(name, dtype, shape, data)
        out.flush()
        os.fsync(out.fileno())
