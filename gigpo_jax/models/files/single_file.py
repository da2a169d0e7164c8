"""All parameters of a model from one safetensors file of `save_weights.write_tensors`."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.models.decoder import DecoderConfig, Params
from gigpo_jax.models.decoder_config import LAYERS
from gigpo_jax.models.files.weights import check_tensors, list_leaves, map_tensor, read_params


def load_file(
    file: pathlib.Path, config: DecoderConfig, *, dtype: Any, shardings: Any = None
) -> Params:
    """Loads the parameters of a file of `write_tensors`; arguments and errors as for `load_hf`."""
    places = check_tensors(file, [file], config)
    return read_params(config, places, jnp.dtype(dtype), shardings)


def map_file(file: pathlib.Path, config: DecoderConfig) -> Params:
    """Maps a file of `write_tensors` into memory.

    The parameters are as for `DecoderConfig.for_cpu`, in the dtype of the file and on the default
    device, which is a CPU. They are the bytes of the file itself: XLA copies only tensors that do
    not begin at a multiple of 64 bytes. Experts are not possible; a vision tower is left out.
    Errors are as for `load_hf`.
    """
    places = check_tensors(file, [file], config)
    leaves, tree = list_leaves(config)
    stacks = []
    for leaf in leaves:
        tensors = [np.asarray(map_tensor(*places[name])) for name in leaf.names]
        stacks.append([jax.device_put(tensor) for tensor in tensors])
    params = jax.tree.unflatten(tree, stacks)
    params.pop("vision", None)

    def take_tensors(index: int, part: Params) -> Params:
        return jax.tree.map(
            lambda stack: stack[index], part, is_leaf=lambda node: isinstance(node, list)
        )

    layers = params.pop(LAYERS)
    split = tuple(take_tensors(index, layers) for index in range(config.num_layers))
    return take_tensors(0, params) | {LAYERS: split}
