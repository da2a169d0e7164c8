"""Hugging Face safetensors <-> parameters, tensor by tensor and without torch.

A Hugging Face folder has one tensor for each layer, with linear layers as [out, in]; here the layers are stacked, with
linear layers as [in, out]. Reading and writing hold one stacked array (reading: one shard of it) in host memory.
"""

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.errors import InputError
from gigpo_jax.files import read_object, replacing_folder
from gigpo_jax.models import qwen2
from gigpo_jax.models.hf_config import config_json, read_config
from gigpo_jax.models.linears import LINEARS, VISION_LINEARS
from gigpo_jax.models.qwen2 import Params, Qwen2Config
from gigpo_jax.models.safetensors_file import INDEX, SINGLE, SUFFIX, Entry, OnTensor, read_header, write_file
from gigpo_jax.models.tokenizer import Tokenizer, check_fits
from gigpo_jax.models.vision_config import FRAMES, PREPROCESSOR, preprocessor_json

_LAYER = LINEARS | {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
}
_TOP = {
    "embed": "model.embed_tokens.weight",
    "final_norm.scale": "model.norm.weight",
    "head": "lm_head.weight",
    "value_head.kernel": "score.weight",
    "value_head.bias": "score.bias",
}
_VISION_LAYER = VISION_LINEARS | {"attention_norm": "norm1", "mlp_norm": "norm2"}
_VISION = {
    "patch": "patch_embed.proj",
    "merger_norm": "merger.ln_q",
    "merger_in": "merger.mlp.0",
    "merger_out": "merger.mlp.2",
}
_IN_MEMORY = {"model.visual.": "visual.", "model.language_model.": "model."}  # names of modules -> of published files
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}  # read
_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}  # written
Places = dict[str, tuple[pathlib.Path, Entry]]  # tensor name -> the file that has it, and where in it
_BLOCK = 1 << 16  # numbers looked at together, in the processor's cache


@dataclass(frozen=True)
class _Leaf:
    """One array of the parameters and its tensors in a folder.

    Attributes:
      shape: of the whole array.
      names: of its tensors: one for each layer if `stacked`, else one.
      transposed: whether the tensors are [out, in].
      inputs: the axes of `in`, if the tensors have several.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]
    stacked: bool
    transposed: bool
    inputs: tuple[int, ...] = ()

    @property
    def stored_shape(self) -> tuple[int, ...]:
        shape = self.shape[1:] if self.stacked else self.shape
        if self.inputs:
            return (shape[-1], *self.inputs)
        return shape[::-1] if self.transposed else shape


def load_hf(
    path: str | pathlib.Path, *, dtype: Any = jnp.float32, shardings: Any = None, value_head: bool = False
) -> tuple[Qwen2Config, Params]:
    """Loads a model from a folder with config.json and safetensors files, with parameters in `dtype`.

    `value_head` reads a language model as a critic, whose values are 0. `shardings` is a tree of
    `jax.sharding.Sharding` like the parameters: every process reads only the shards of its devices. None: the default
    device.

    Raises:
      InputError: a file is missing or broken, config.json describes another model, or a tensor is missing, of another
        shape, of integers, or not finite in `dtype`.
    """
    folder = pathlib.Path(path)
    stored = read_config(folder)
    config = replace(stored, value_head=value_head or stored.value_head)
    places = _check_tensors(folder, stored)
    dtype = jnp.dtype(dtype)
    leaves, tree = _leaves(config)
    placed = [None] * len(leaves) if shardings is None else tree.flatten_up_to(shardings)
    arrays = []
    for leaf, sharding in zip(leaves, placed, strict=True):
        sharding = sharding or jax.sharding.SingleDeviceSharding(jnp.zeros(()).device)
        arrays.append(jax.make_array_from_callback(leaf.shape, sharding, _reader(leaf, places, dtype)))
        arrays[-1].block_until_ready()  # frees its host copies before the next array is read
    return config, jax.tree.unflatten(tree, arrays)


def save_hf(
    path: str | pathlib.Path,
    config: Qwen2Config,
    params: Params,
    *,
    dtype: Any = None,
    tokenizer: Tokenizer | None = None,
    stop_strings: Sequence[str] = (),
    max_shard_bytes: int = 4_000_000_000,
) -> None:
    """Writes a folder that transformers, vLLM and `load_hf` read; all processes must call this, the first one writes.

    The folder appears complete or not at all; an earlier model there is replaced. Sharded parameters are gathered one
    array at a time; `dtype` None keeps theirs. `stop_strings`, which end a response, go into generation_config.json.

    Raises:
      InputError: the path cannot be written, holds something else, or the tokenizer does not fit.
    """
    folder = pathlib.Path(path)
    dtype = np.dtype(params["embed"].dtype if dtype is None else dtype)
    if dtype.name not in _NAMES:
        raise InputError(f"{folder}: cannot store dtype {dtype.name}; choose one of {', '.join(_NAMES)}")
    if tokenizer is not None:
        check_fits(tokenizer, config.vocab_size, folder)
    first = jax.process_index() == 0
    try:
        if first:
            check_target(folder)
        with replacing_folder(folder, full=True) if first else contextlib.nullcontext() as temporary:
            _write_weights(temporary, config, params, dtype, max_shard_bytes)
            if temporary is not None:
                _write_small_files(temporary, config, dtype, tokenizer, stop_strings)
    except OSError as err:
        raise InputError(f"{folder}: cannot be written ({err.strerror}); choose another path or make room") from err


def write_tensors(
    file: pathlib.Path | None, config: Qwen2Config, params: Params, *, dtype: Any, on_tensor: OnTensor | None = None
) -> None:
    """Writes all parameters into one safetensors file of `dtype`, not atomically; raises OSError.

    All processes must call this; those with `file` None only take part in gathering.
    """
    leaves, tree = _leaves(config)
    dtype = np.dtype(dtype)
    names = [(name, leaf.stored_shape) for leaf in leaves for name in leaf.names]
    tensors = _tensors(leaves, tree.flatten_up_to(params), dtype)
    if file is None:
        for _ in tensors:
            pass
    else:
        write_safetensors(file, names, tensors, dtype, on_tensor)


def _leaves(config: Qwen2Config) -> tuple[list[_Leaf], Any]:
    """The arrays of the tree in its order, and the tree's structure."""
    flat, tree = jax.tree_util.tree_flatten_with_path(qwen2.abstract_params(config))
    leaves = []
    for keys, abstract in flat:
        path = [key.key for key in keys]
        vision, stacked = path[0] == "vision", "layers" in path[:2]
        kind = "bias" if path[-1] == "bias" else "weight"
        if vision and stacked:
            names = [f"visual.blocks.{n}.{_VISION_LAYER[path[2]]}.{kind}" for n in range(abstract.shape[0])]
        elif vision:
            names = [f"visual.{_VISION[path[1]]}.{kind}"]
        elif stacked:
            names = [f"model.layers.{n}.{_LAYER[path[1]]}.{kind}" for n in range(abstract.shape[0])]
        else:
            names = [_TOP[".".join(path)]]
        side = config.vision.patch_size if config.vision is not None else 0
        inputs = (3, FRAMES, side, side) if path[:2] == ["vision", "patch"] else ()
        leaves.append(_Leaf(abstract.shape, tuple(names), stacked, path[-1] == "kernel", inputs))
    return leaves, tree


def _reader(leaf: _Leaf, places: Places, dtype: np.dtype) -> Callable[[Any], np.ndarray]:
    """The callback for `make_array_from_callback`; replicas on this host are read once."""
    read: dict[tuple, np.ndarray] = {}

    def shard(index: tuple[slice, ...]) -> np.ndarray:
        key = tuple(axis.indices(size) for axis, size in zip(index, leaf.shape, strict=True))
        if key not in read:
            read[key] = _read(leaf, places, dtype, tuple(slice(*axis) for axis in key))
        return read[key]

    return shard


def _read(leaf: _Leaf, places: Places, dtype: np.dtype, index: tuple[slice, ...]) -> np.ndarray:
    layers = range(len(leaf.names))[index[0]] if leaf.stacked else range(1)
    inner = index[1:] if leaf.stacked else index
    out = np.empty((len(layers), *(axis.stop - axis.start for axis in inner)), dtype)
    for row, layer in zip(out, layers, strict=True):
        name = leaf.names[layer]
        if name not in places:  # the value head of a language model
            row[...] = 0.0
            continue
        tensor = mapped(*places[name])
        tensor = tensor.reshape(len(tensor), -1) if leaf.inputs else tensor
        with np.errstate(over="ignore"):
            row[...] = (tensor.T if leaf.transposed else tensor)[inner]
        check_finite(places[name][0], name, row)
    return out if leaf.stacked else out[0]


def mapped(file: pathlib.Path, entry: Entry) -> np.ndarray:
    """Maps one tensor of a safetensors file into memory: read-only, in the shape and dtype of the file."""
    return np.memmap(file, _DTYPES[entry.dtype], "r", entry.start, entry.shape)


def check_dtype(file: pathlib.Path, name: str, entry: Entry) -> None:
    """Raises InputError if a tensor is not of floating-point numbers."""
    if entry.dtype not in _DTYPES:
        raise InputError(f"{file}: {name} has dtype {entry.dtype}; use weights of dtype {', '.join(_DTYPES)}")


def check_finite(file: pathlib.Path, name: str, array: np.ndarray) -> None:
    """Raises InputError if an array that was read has NaN or infinite values."""
    if not is_finite(array):
        raise InputError(f"{file}: {name} has NaN or infinite values in {array.dtype.name}; use other weights")


def is_finite(array: np.ndarray) -> bool:
    """Whether a contiguous floating-point array has neither NaN nor infinity; faster than `np.isfinite`."""
    bits = array.reshape(-1).view(f"u{array.itemsize}")
    infinity = np.array(np.inf, array.dtype).view(bits.dtype)
    magnitude = bits.dtype.type((1 << (8 * array.itemsize - 1)) - 1)
    return all(np.max(bits[at : at + _BLOCK] & magnitude) < infinity for at in range(0, bits.size, _BLOCK))


def _check_tensors(folder: pathlib.Path, config: Qwen2Config) -> Places:
    """The place of each tensor; raises InputError if the tensors are not those of `config`."""
    paths = _weight_files(folder)
    found = {_published(name): (file, entry) for file in paths for name, entry in read_header(file).items()}
    expected = {name: leaf.stored_shape for leaf in _leaves(config)[0] for name in leaf.names}
    for name, shape in expected.items():
        if name not in found:
            raise InputError(f"{folder}: tensor {name} is missing; the set of weights is incomplete, download it again")
        file, entry = found[name]
        check_dtype(file, name, entry)
        if entry.shape != shape:
            raise InputError(
                f"{file}: {name} has shape {list(entry.shape)}, config.json asks for {list(shape)}; "
                "use the config.json that belongs to these weights"
            )
    ignored = {"lm_head.weight"}  # some folders keep the tied head a second time
    extra = sorted(name for name in found if name not in expected | dict.fromkeys(ignored) and "rotary_emb" not in name)
    if extra:
        raise InputError(
            f"{folder}: {len(extra)} tensors do not belong to config.json's model ({extra[0]}); use its own"
        )
    return {name: found[name] for name in expected}


def _published(name: str) -> str:
    """The name of a tensor in published files."""
    prefix = next((prefix for prefix in _IN_MEMORY if name.startswith(prefix)), "")
    return _IN_MEMORY.get(prefix, "") + name.removeprefix(prefix)


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    index = folder / INDEX
    if not index.is_file():
        if not (folder / SINGLE).is_file():
            raise InputError(f"{folder}: neither {SINGLE} nor {INDEX} is there; download or convert to safetensors")
        return [folder / SINGLE]
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index}: weight_map={weight_map!r:.80} must be an object of file names; download it again")
    for name in weight_map.values():
        if not isinstance(name, str) or pathlib.PurePath(name).name != name or not name.endswith(SUFFIX):
            raise InputError(f"{index}: {name!r:.80} is not a {SUFFIX} file in this folder; download the index again")
    listed = sorted(set(weight_map.values()))
    absent = [name for name in listed if not (folder / name).is_file()]
    if absent:
        raise InputError(
            f"{folder}: {len(absent)} of {len(listed)} weight files are missing ({absent[0]}); download them again"
        )
    return [folder / name for name in listed]


def _write_weights(
    folder: pathlib.Path | None, config: Qwen2Config, params: Params, dtype: np.dtype, max_shard_bytes: int
) -> None:
    """Writes the safetensors files; with `folder` None it only takes part in gathering."""
    leaves, tree = _leaves(config)
    plan: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    room = max_shard_bytes
    for leaf in leaves:
        size = int(np.prod(leaf.stored_shape)) * dtype.itemsize
        for name in leaf.names:
            if size > room and plan[-1]:
                plan.append([])
                room = max_shard_bytes
            plan[-1].append((name, leaf.stored_shape))
            room -= size
    names = (
        [SINGLE] if len(plan) == 1 else [f"model-{i + 1:05}-of-{len(plan):05}.safetensors" for i in range(len(plan))]
    )
    tensors = _tensors(leaves, tree.flatten_up_to(params), dtype)
    for file, tensors_of_file in zip(names, plan, strict=True):
        if folder is None:
            for _ in tensors_of_file:
                next(tensors)
        else:
            write_safetensors(folder / file, tensors_of_file, tensors, dtype)
    if folder is not None and len(plan) > 1:
        total = sum(int(np.prod(shape)) * dtype.itemsize for part in plan for _, shape in part)
        weight_map = {name: file for file, part in zip(names, plan, strict=True) for name, _ in part}
        content = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def _tensors(leaves: list[_Leaf], arrays: list[jax.Array], dtype: np.dtype) -> Iterator[np.ndarray]:
    for leaf, array in zip(leaves, arrays, strict=True):
        whole = to_host(array)
        for layer in whole if leaf.stacked else whole[None]:
            yield np.ascontiguousarray(layer.T if leaf.transposed else layer, dtype)


def to_host(array: jax.Array) -> np.ndarray:
    """The whole array; all processes must call this."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)


def write_safetensors(
    file: pathlib.Path,
    names: list[tuple[str, tuple[int, ...]]],
    tensors: Iterator[np.ndarray],
    dtype: np.dtype,
    on_tensor: OnTensor | None = None,
) -> None:
    """As `safetensors_file.write_file`, of contiguous arrays in `dtype`."""
    data = (tensor.reshape(-1).view(np.uint8).data for tensor in tensors)
    write_file(file, names, _NAMES[dtype.name], data, on_tensor)


def _write_small_files(
    folder: pathlib.Path,
    config: Qwen2Config,
    dtype: np.dtype,
    tokenizer: Tokenizer | None,
    stop_strings: Sequence[str],
) -> None:
    eos = config.eos_token_id
    stops = list(eos) if isinstance(eos, tuple) else [] if eos is None else [eos]
    if tokenizer is not None:
        tokenizer.save(folder)
        stops = list(dict.fromkeys([*tokenizer.stop_token_ids, *stops]))
    generation: dict[str, Any] = {"bos_token_id": config.bos_token_id, "do_sample": True, "eos_token_id": stops or None}
    if stop_strings:
        generation["stop_strings"] = list(stop_strings)
    files = {"config.json": config_json(config, dtype.name), "generation_config.json": generation}
    if config.vision is not None:
        files[PREPROCESSOR] = preprocessor_json(config.vision)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def check_target(path: str | pathlib.Path) -> None:
    """Raises InputError if `save_hf` would refuse this folder: it holds something that is not a model."""
    folder = pathlib.Path(path)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").is_file():
        raise InputError(f"{folder}: exists and is not a model; choose another path or remove it")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; choose another path")
