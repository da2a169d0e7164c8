"""Hugging Face safetensors <-> parameters, tensor by tensor and without torch.

A Hugging Face folder has one tensor for each layer, with linear layers as [out, in]; here the
layers are stacked, with linear layers as [in, out]. An expert has tensors of its own there, and is
stacked with the other experts of its layer here. Reading and writing hold one stacked array
(reading: one shard of it; writing on several hosts: one layer of it) in host memory.
"""

import pathlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.models import decoder
from gigpo_jax.models.decoder import DecoderConfig, Params
from gigpo_jax.models.decoder_config import STACKS
from gigpo_jax.models.families.family import find_family
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.safetensors_file import INDEX, SINGLE, Entry, read_header
from gigpo_jax.models.linear_names import EXPERT_LINEARS, LINEARS

_LAYER = LINEARS | {
    "router": "mlp.gate",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
}
HEAD = "lm_head.weight"
_TOP = {
    "embed": "model.embed_tokens.weight",
    "final_norm.scale": "model.norm.weight",
    "head": HEAD,
    "value_head.kernel": "score.weight",
    "value_head.bias": "score.bias",
}
# Prefixes of module names in transformers, also in files of Qwen3-VL -> in other published files.
_PREFIXES = {"model.visual.": "visual.", "model.language_model.": "model."}
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}  # read
Places = dict[str, tuple[pathlib.Path, Entry]]  # tensor name -> its file, and its place there
_BLOCK = 1 << 16  # numbers that are checked together: they fit the processor's cache


@dataclass(frozen=True)
class Leaf:
    """One array of the parameters, with the tensors of a folder that it is stored in.

    Attributes:
      shape: shape of the whole array.
      names: names of its tensors, in the order of the stacked axes.
      stacked_axes: number of first axes that the tensors do not have, for layers and experts.
      transposed: whether the tensors are [out, in].
      inputs: sizes of the input axes, if the tensors have several.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]
    stacked_axes: int
    transposed: bool
    inputs: tuple[int, ...] = ()

    @property
    def stored_shape(self) -> tuple[int, ...]:
        shape = self.shape[self.stacked_axes :]
        if self.inputs:
            return (shape[-1], *self.inputs)
        return shape[::-1] if self.transposed else shape


def load_hf(
    path: str | pathlib.Path,
    *,
    dtype: Any = jnp.float32,
    shardings: Any = None,
    value_head: int = 0,
) -> tuple[DecoderConfig, Params]:
    """Loads a model's shape and parameters from a folder with config.json and safetensors files.

    Args:
      path: folder.
      dtype: dtype of the parameters.
      shardings: tree of `jax.sharding.Sharding` like the parameters; every process reads only the
        shards of its devices. None: the default device.
      value_head: number of values a token of a critic that a language model is read as, which
        are 0.

    Raises:
      InputError: a file is missing or broken, config.json describes another model, or a tensor is
        missing, of another shape, of integers, or not finite in `dtype`.
    """
    folder = pathlib.Path(path)
    stored_config = read_config(folder)
    config = replace(stored_config, value_head=value_head or stored_config.value_head)
    # By the folder's own config: the head of a critic may be missing there.
    places = check_tensors(folder, _weight_files(folder), stored_config)
    return config, read_params(config, places, jnp.dtype(dtype), shardings)


def read_params(config: DecoderConfig, places: Places, dtype: np.dtype, shardings: Any) -> Params:
    """Reads the parameters from the places of their tensors; arguments as for `load_hf`."""
    leaves, tree = list_leaves(config)
    if shardings is None:
        # An array tells the default device also within `jax.default_device`.
        default = jax.sharding.SingleDeviceSharding(jnp.zeros(()).device)
        leaf_shardings = [default] * len(leaves)
    else:
        leaf_shardings = tree.flatten_up_to(shardings)
    arrays = []
    for leaf, sharding in zip(leaves, leaf_shardings, strict=True):
        read_shard = _make_reader(leaf, places, dtype)
        array = jax.make_array_from_callback(leaf.shape, sharding, read_shard)
        array.block_until_ready()  # frees its host copies before the next array is read
        arrays.append(array)
    return jax.tree.unflatten(tree, arrays)


def stored_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor of a model's files by its name."""
    return {name: leaf.stored_shape for leaf in list_leaves(config)[0] for name in leaf.names}


def list_leaves(config: DecoderConfig) -> tuple[list[Leaf], Any]:
    """Lists the tree's arrays in its order, with its structure."""
    flat, tree = jax.tree_util.tree_flatten_with_path(decoder.abstract_params(config))
    leaves = []
    for keys, abstract in flat:
        path = [key.key for key in keys]
        inputs: tuple[int, ...] = ()
        if config.vision is not None and path == ["vision", "patch", "kernel"]:
            inputs = config.vision.patch_shape
        names, stacked_axes = _tensor_names(config, path)
        names = tuple(_published_name(config, name) for name in names)
        is_kernel = path[-1] == "kernel"
        leaves.append(Leaf(abstract.shape, names, stacked_axes, is_kernel, inputs))
    return leaves, tree


def _tensor_names(config: DecoderConfig, path: list[str]) -> tuple[tuple[str, ...], int]:
    """Returns a leaf's tensor names, with Qwen2.5-VL's prefixes, and number of stacked axes."""
    # Parameters that are no module's, such as vectors, have no kind.
    kind = {"bias": ".bias", "values": ""}.get(path[-1], ".weight")
    if config.vision is not None and path[0] == "vision":
        from gigpo_jax.models.vision.tensor_names import tower_names

        return tower_names(config.vision, path[1:], kind[1:])
    if path[0] not in STACKS:
        return (_TOP[".".join(path)],), 0
    numbers = config.layer_numbers(path[0])
    if config.experts is None or path[1] not in EXPERT_LINEARS:
        module = (_LAYER | find_family(config.model_type).modules)[path[1]]
        return tuple(f"model.layers.{n}.{module}{kind}" for n in numbers), 1
    module = EXPERT_LINEARS[path[1]]
    experts = range(config.experts.count)
    return tuple(f"model.layers.{n}.{module.format(e)}{kind}" for n in numbers for e in experts), 2


def _make_reader(leaf: Leaf, places: Places, dtype: np.dtype) -> Callable[[Any], np.ndarray]:
    """Callback for `make_array_from_callback`; replicas on this host are read once."""
    shards: dict[tuple, np.ndarray] = {}

    def read_shard(index: tuple[slice, ...]) -> np.ndarray:
        key = tuple(axis.indices(size) for axis, size in zip(index, leaf.shape, strict=True))
        if key not in shards:
            shards[key] = _read_leaf(leaf, places, dtype, tuple(slice(*axis) for axis in key))
        return shards[key]

    return read_shard


def _read_leaf(leaf: Leaf, places: Places, dtype: np.dtype, index: tuple[slice, ...]) -> np.ndarray:
    """Reads the slice `index` of an array, tensor by tensor."""
    stacked_axes = leaf.stacked_axes
    # The tensors that the slice touches, in the order of `names`.
    numbers = np.arange(len(leaf.names)).reshape(leaf.shape[:stacked_axes])[index[:stacked_axes]]
    inner = index[stacked_axes:]
    out = np.empty((numbers.size, *(axis.stop - axis.start for axis in inner)), dtype)
    for row, number in zip(out, numbers.flat, strict=True):
        name = leaf.names[number]
        if name not in places:  # the value head of a language model
            row[...] = 0.0
            continue
        tensor = map_tensor(*places[name])
        # A kernel of a convolution, [out, channel, frame, y, x], is a matrix [out, in] here.
        if leaf.inputs:
            tensor = tensor.reshape(len(tensor), -1)
        if leaf.transposed:
            tensor = tensor.T
        with np.errstate(over="ignore"):  # `check_finite` reports what overflows
            row[...] = tensor[inner]
        check_finite(places[name][0], name, row)
    return out.reshape(*numbers.shape, *out.shape[1:])


def map_tensor(file: pathlib.Path, entry: Entry) -> np.ndarray:
    """Maps one tensor of a safetensors file into memory, read-only."""
    return np.memmap(file, _DTYPES[entry.dtype], "r", entry.start, entry.shape)


def check_dtype(file: pathlib.Path, name: str, entry: Entry) -> None:
    """Raises InputError if a tensor is not of floating-point numbers."""
    if entry.dtype not in _DTYPES:
        raise InputError(
            f"{name} has dtype {entry.dtype}",
            key=file,
            fix=f"use weights of dtype {', '.join(_DTYPES)}",
        )


def check_finite(file: pathlib.Path, name: str, array: np.ndarray) -> None:
    """Raises InputError if an array has NaN or infinite values."""
    if not is_finite(array):
        raise InputError(
            f"{name} has NaN or infinite values in {array.dtype.name}",
            key=file,
            fix="use other weights",
        )


def is_finite(array: np.ndarray) -> bool:
    """Whether a contiguous floating-point array has neither NaN nor infinity."""
    # Faster than `np.isfinite`: without the sign, the bits of NaN and infinity are the largest
    # integers.
    bits = array.reshape(-1).view(f"u{array.itemsize}")
    infinity = np.array(np.inf, array.dtype).view(bits.dtype)
    magnitude = bits.dtype.type((1 << (8 * array.itemsize - 1)) - 1)
    for start in range(0, bits.size, _BLOCK):
        if np.max(bits[start : start + _BLOCK] & magnitude) >= infinity:
            return False
    return True


def check_tensors(source: pathlib.Path, files: list[pathlib.Path], config: DecoderConfig) -> Places:
    """Locates the tensors of files; raises InputError, about `source`, if they do not fit."""
    stored: Places = {}
    for file in files:
        for name, entry in read_header(file).items():
            stored[_published_name(config, name)] = (file, entry)
    shapes = stored_shapes(config)
    for name, shape in shapes.items():
        if name not in stored:
            raise InputError(
                f"tensor {name} is missing",
                key=source,
                fix="the set of weights is incomplete, download it again",
            )
        file, entry = stored[name]
        check_dtype(file, name, entry)
        if entry.shape != shape:
            raise InputError(
                f"{name} has shape {list(entry.shape)}, config.json asks for {list(shape)}",
                key=file,
                fix="use the config.json that belongs to these weights",
            )
    # Some folders keep the tied head a second time, or the frequencies of the rotary embedding.
    known_names = shapes.keys() | {HEAD}
    ignored = find_family(config.model_type).ignored_tensors
    extra = sorted(
        name
        for name in stored.keys() - known_names
        if not (name.endswith("rotary_emb.inv_freq") or name.startswith(ignored))
    )
    if extra:
        raise InputError(
            f"{len(extra)} tensors do not belong to config.json's model ({extra[0]})",
            key=source,
            fix="use its own",
        )
    # A critic has no head: the head of the model that it starts from is not read.
    if HEAD in stored.keys() - shapes.keys() and not config.value_head:
        (embedding,) = (name for name in shapes if name.endswith("embed_tokens.weight"))
        from gigpo_jax.models.files.weight_index import check_tied_head

        check_tied_head(source, HEAD, map_tensor(*stored[HEAD]), map_tensor(*stored[embedding]))
    return {name: stored[name] for name in shapes}


def _published_name(config: DecoderConfig, name: str) -> str:
    """Name of a tensor in published files of a model."""
    prefixes = _PREFIXES
    if config.vision is not None and config.vision.nests_decoder:
        if name.startswith(tuple(_PREFIXES)):
            return name
        prefixes = {short: prefix for prefix, short in _PREFIXES.items()}
    for prefix, published_prefix in prefixes.items():
        if name.startswith(prefix):
            return published_prefix + name.removeprefix(prefix)
    return name


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the safetensors files of a model folder; raises InputError if one is missing."""
    index = folder / INDEX
    if not index.is_file():
        if not (folder / SINGLE).is_file():
            raise InputError(
                f"neither {SINGLE} nor {INDEX} is there",
                key=folder,
                fix="download or convert to safetensors",
            )
        return [folder / SINGLE]
    from gigpo_jax.models.files.weight_index import read_index

    return read_index(index, map_tensor)
