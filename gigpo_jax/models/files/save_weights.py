"""Writing model folders: config, tokenizer, and weights in shards of safetensors files."""

import contextlib
import functools
import json
import pathlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.folders import replace_folder
from gigpo_jax.models.decoder import DecoderConfig, Params
from gigpo_jax.models.files.safetensors_file import (
    INDEX,
    SINGLE,
    SUFFIX,
)
from gigpo_jax.models.files.safetensors_output import OnTensor, write_file
from gigpo_jax.models.files.weights import Leaf, list_leaves
from gigpo_jax.models.files.write_config import config_json
from gigpo_jax.models.text.tokenizer import Tokenizer, check_vocabulary
from gigpo_jax.models.text.tokenizer_files import STOPS
from gigpo_jax.models.vision.vision_config import PREPROCESSOR, preprocessor_json

_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}  # written


def save_hf(
    path: str | pathlib.Path,
    config: DecoderConfig,
    params: Params,
    *,
    dtype: Any = None,
    tokenizer: Tokenizer | None = None,
    stop_strings: Sequence[str] = (),
    max_shard_bytes: int = 4_000_000_000,
) -> None:
    """Writes a folder that transformers, vLLM and `load_hf` read.

    All processes must call this; the first one writes. The folder appears complete or not at all;
    an earlier model there is replaced. Sharded parameters are gathered one array at a time, and
    over several hosts one layer at a time.

    Args:
      path: folder.
      config: shape of the model.
      params: parameter tree.
      dtype: dtype of the file; None: the parameters'.
      tokenizer: tokenizer to save beside the weights.
      stop_strings: strings that end a response, for gigpo_jax.json.
      max_shard_bytes: largest size of a safetensors file, unless one tensor is larger.

    Raises:
      InputError: the path cannot be written, holds something else, or the tokenizer does not fit.
    """
    folder = pathlib.Path(path)
    dtype = np.dtype(params["embed"].dtype if dtype is None else dtype)
    if dtype.name not in _NAMES:
        raise InputError(
            f"cannot store dtype {dtype.name}", key=folder, fix=f"choose one of {', '.join(_NAMES)}"
        )
    if tokenizer is not None:
        check_vocabulary(tokenizer, config.vocab_size, folder)
    is_writer = jax.process_index() == 0
    try:
        if is_writer:
            check_target(folder)
        # Other processes write nothing, but gathering needs all of them.
        with (
            replace_folder(folder, full=True)
            if is_writer
            else contextlib.nullcontext() as temporary
        ):
            _write_weights(temporary, config, params, dtype, max_shard_bytes)
            if temporary is not None:
                _write_small_files(temporary, config, dtype, tokenizer, stop_strings)
    except OSError as err:
        raise InputError(
            f"cannot be written ({err.strerror})",
            key=folder,
            fix="choose another path or make room",
        ) from err


def write_tensors(
    file: pathlib.Path | None,
    config: DecoderConfig,
    params: Params,
    *,
    dtype: Any,
    on_tensor: OnTensor | None = None,
) -> None:
    """Writes all parameters into one safetensors file of `dtype`.

    The write is not atomic and raises OSError. All processes must call this; processes with `file`
    None only take part in gathering.
    """
    leaves, tree = list_leaves(config)
    dtype = np.dtype(dtype)
    names = [(name, leaf.stored_shape) for leaf in leaves for name in leaf.names]
    tensors = _gather_tensors(leaves, tree.flatten_up_to(params), dtype)
    # Gathering is a computation of all processes: each takes part for every tensor, in one order.
    if file is None:
        for _ in tensors:
            pass
    else:
        write_safetensors(file, names, tensors, dtype, on_tensor)


def _write_weights(
    folder: pathlib.Path | None,
    config: DecoderConfig,
    params: Params,
    dtype: np.dtype,
    max_shard_bytes: int,
) -> None:
    """Writes the safetensors files; with `folder` None it only takes part in gathering."""
    leaves, tree = list_leaves(config)
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    free_bytes = max_shard_bytes
    for leaf in leaves:
        size = int(np.prod(leaf.stored_shape)) * dtype.itemsize
        for name in leaf.names:
            # A tensor is never split; one that is larger than the limit gets a file of its own.
            if size > free_bytes and shards[-1]:
                shards.append([])
                free_bytes = max_shard_bytes
            shards[-1].append((name, leaf.stored_shape))
            free_bytes -= size
    if len(shards) == 1:
        files = [SINGLE]
    else:
        files = [
            f"model-{number:05}-of-{len(shards):05}{SUFFIX}" for number in range(1, len(shards) + 1)
        ]
    tensors = _gather_tensors(leaves, tree.flatten_up_to(params), dtype)
    for file, names in zip(files, shards, strict=True):
        # The same number of tensors as the writer takes: gathering needs all processes.
        if folder is None:
            for _ in names:
                next(tensors)
        else:
            write_safetensors(folder / file, names, tensors, dtype)
    if folder is not None and len(shards) > 1:
        total_size = 0
        weight_map = {}
        for file, names in zip(files, shards, strict=True):
            for name, shape in names:
                weight_map[name] = file
                total_size += int(np.prod(shape)) * dtype.itemsize
        content = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def _gather_tensors(
    leaves: list[Leaf], arrays: list[jax.Array], dtype: np.dtype
) -> Iterator[np.ndarray]:
    # One tensor ahead: a thread lays out the next one while the caller writes this one.
    with ThreadPoolExecutor(1) as pool:
        pending: Future[np.ndarray] | None = None
        for leaf, array in zip(leaves, arrays, strict=True):
            for piece in _gather_pieces(array, leaf.stacked_axes):
                # An array of all layers in the stored layout is never made.
                for tensor in piece.reshape(-1, *leaf.shape[leaf.stacked_axes :]):
                    stored = tensor.T if leaf.transposed else tensor
                    following = pool.submit(_store_contiguous, stored, dtype)
                    if pending is not None:
                        yield pending.result()
                    pending = following
        if pending is not None:
            yield pending.result()


def _store_contiguous(tensor: np.ndarray, dtype: np.dtype) -> np.ndarray:
    # Converted in the order of its memory: with the transpose it would take three times as long.
    tensor = tensor.astype(dtype, copy=False)
    if not tensor.flags.c_contiguous and (device := _host_device()) is not None:
        # The transposes of jax's CPU client take 0.4 of numpy's time.
        return np.asarray(jax.device_put(tensor, device))
    # As integers: numpy copies types of other packages, such as bfloat16, under Python's lock.
    return np.ascontiguousarray(tensor.view(f"u{dtype.itemsize}")).view(dtype)


@functools.cache
def _host_device() -> jax.Device | None:
    """Returns this process's CPU as a device, or None if JAX_PLATFORMS has no CPU."""
    with contextlib.suppress(RuntimeError):
        return jax.local_devices(backend="cpu")[0]
    return None


def _gather_pieces(array: jax.Array, stacked_axes: int) -> Iterator[np.ndarray]:
    """Gathers an array in pieces along its first axis."""
    if stacked_axes and isinstance(array, jax.Array) and not array.is_fully_addressable:
        # Gathering over hosts puts the result on every device: all layers of experts would not fit.
        for layer in range(len(array)):
            yield gather_to_host(array[layer])
    else:
        yield gather_to_host(array)


def gather_to_host(array: jax.Array) -> np.ndarray:
    """Gathers a sharded array in host memory; all processes must call this."""
    # Some shards are on other hosts; `tiled` joins them along their own axes.
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    if isinstance(array, jax.Array):
        # Another array of the same buffers: an array keeps the host's copy as long as it lives,
        # and all parameters together may not fit in host memory.
        shards = [shard.data for shard in array.addressable_shards]
        array = jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)
    return np.asarray(array)


def write_safetensors(
    file: pathlib.Path,
    names: list[tuple[str, tuple[int, ...]]],
    tensors: Iterator[np.ndarray],
    dtype: np.dtype,
    on_tensor: OnTensor | None = None,
) -> None:
    """Writes contiguous arrays in `dtype` with `safetensors_output.write_file`."""
    data = (tensor.reshape(-1).view(np.uint8).data for tensor in tensors)
    write_file(file, names, _NAMES[dtype.name], data, on_tensor)


def _write_small_files(
    folder: pathlib.Path,
    config: DecoderConfig,
    dtype: np.dtype,
    tokenizer: Tokenizer | None,
    stop_strings: Sequence[str],
) -> None:
    eos = config.eos_token_id
    stops: list[int] = []
    if eos is not None:
        stops = list(eos) if isinstance(eos, tuple) else [eos]
    if tokenizer is not None:
        tokenizer.save(folder)
        stops = list(dict.fromkeys([*tokenizer.stop_token_ids, *stops]))
        # Where a string is a token, `generate` of transformers and vLLM end there by themselves.
        tokens = [tokenizer.token_id(text) for text in stop_strings]
        stops += [token for token in tokens if token is not None and token not in stops]
    generation: dict[str, Any] = {"do_sample": True}
    if tokenizer is not None:
        generation |= tokenizer.generation
    generation |= {"bos_token_id": config.bos_token_id, "eos_token_id": stops or None}
    # They are in a file of our own.
    generation.pop("stop_strings", None)
    files: dict[str, Any] = {
        "config.json": config_json(config, dtype.name),
        "generation_config.json": generation,
    }
    if "pad_token_id" in generation:
        files["config.json"]["pad_token_id"] = generation["pad_token_id"]
    if stop_strings:
        files[STOPS] = {"stop_strings": list(stop_strings)}
    if config.vision is not None:
        files[PREPROCESSOR] = preprocessor_json(config.vision)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def check_target(path: str | pathlib.Path) -> None:
    """Raises InputError if a folder holds anything but a model."""
    folder = pathlib.Path(path)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").is_file():
        raise InputError(
            "exists and is not a model", key=folder, fix="choose another path or remove it"
        )
    if folder.exists() and not folder.is_dir():
        raise InputError("is a file", key=folder, fix="choose another path")
