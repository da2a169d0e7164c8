"""Model folders whose weights are in several files, or stand in files twice."""

import pathlib
from collections.abc import Callable

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import read_object
from gigpo_jax.models.files.safetensors_file import INDEX, SINGLE, SUFFIX, Entry, read_header

MapTensor = Callable[[pathlib.Path, Entry], np.ndarray]  # `weights.map_tensor`
_BLOCK = 1 << 20  # bytes that are compared together


def read_index(index: pathlib.Path, map_tensor: MapTensor) -> list[pathlib.Path]:
    """Returns the safetensors files of an index file; raises InputError if one is missing."""
    folder = index.parent
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(
            f"weight_map={weight_map!r:.80} must be an object of file names",
            key=index,
            fix="download it again",
        )
    for name in weight_map.values():
        if (
            not isinstance(name, str)
            # A name with a path could lead to any file of the machine.
            or pathlib.PurePath(name).name != name
            or not name.endswith(SUFFIX)
        ):
            raise InputError(
                f"{name!r:.80} is not a {SUFFIX} file in this folder",
                key=index,
                fix="download the index again",
            )
    files = sorted(set(weight_map.values()))
    missing_files = [name for name in files if not (folder / name).is_file()]
    if missing_files:
        raise InputError(
            f"{len(missing_files)} of {len(files)} weight files are missing ({missing_files[0]})",
            key=folder,
            fix="download them again",
        )
    shards = [folder / name for name in files]
    # transformers reads the single file, vLLM the index.
    single = folder / SINGLE
    if (
        SINGLE not in files
        and single.is_file()
        and not _has_equal_tensors(single, shards, map_tensor)
    ):
        raise InputError(
            f"{SINGLE} and the files of {INDEX} hold different weights",
            key=folder,
            fix="remove the one that is not the model",
        )
    return shards


def _has_equal_tensors(
    single: pathlib.Path, shards: list[pathlib.Path], map_tensor: MapTensor
) -> bool:
    """Whether a file holds the tensors of other files together."""
    places = {name: (file, entry) for file in shards for name, entry in read_header(file).items()}
    tensors = {name: (single, entry) for name, entry in read_header(single).items()}
    return places.keys() == tensors.keys() and all(
        has_equal_values(map_tensor(*places[name]), map_tensor(*tensors[name])) for name in places
    )


def check_tied_head(
    source: pathlib.Path, name: str, head: np.ndarray, embedding: np.ndarray
) -> None:
    """Raises InputError if a stored head, which config.json ties, is not the embedding."""
    if not has_equal_values(head, embedding):
        raise InputError(
            f"{name} is not the embedding, config.json says that they are tied",
            key=source,
            fix="set tie_word_embeddings to false in config.json if the head is right, or "
            f"remove {name} from the weights",
        )


def has_equal_values(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether two mapped tensors are the same."""
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    # In pieces: whole copies may not fit in memory.
    rows = [tensor.reshape(-1).view(np.uint8) for tensor in (one, two)]
    return all(
        np.array_equal(rows[0][start : start + _BLOCK], rows[1][start : start + _BLOCK])
        for start in range(0, rows[0].size, _BLOCK)
    )
