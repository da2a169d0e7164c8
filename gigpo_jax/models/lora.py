"""Low-rank adapters (LoRA, arXiv 2106.09685): y = x W + (alpha / R) (x A) B with frozen W.

An adapter is a separate tree, {"layers": {linear: {"lora_a": [L, I, R], "lora_b": [L, R, O]}}} in
float32; one of the vision tower too has {"vision": {"layers": ..}} beside it, one of a model with
layers without attention "delta_layers", for their MLPs alone. `attach_adapter`
merges it into the parameter tree of a model, for every function of `decoder`, and multiplies B by
alpha / R. B starts at 0, so the model is unchanged.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from gigpo_jax.models import decoder
from gigpo_jax.models.decoder import DecoderConfig, Params
from gigpo_jax.models.decoder_config import DELTA_LAYERS, LAYERS
from gigpo_jax.models.linear_names import MLP_LINEARS, TARGETS
from gigpo_jax.models.vision.linears import VISION_TARGETS


@dataclass(frozen=True)
class LoraConfig:
    """The shape of an adapter.

    Attributes:
      rank: R >= 1.
      alpha: > 0; the product of a pair is multiplied by alpha / R.
      targets: linear layers of the decoder with a pair, keys of `TARGETS`.
      vision: whether all linear layers in the blocks of a vision tower have a pair.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = tuple(TARGETS)
    vision: bool = False

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        """Reads the keys of `model.lora`."""
        return cls(settings.rank, settings.alpha, tuple(settings.targets), settings.vision)

    @property
    def scale(self) -> float:
        """alpha / R."""
        return self.alpha / self.rank

    @property
    def stack_linears(self) -> dict[str, tuple[str, ...]]:
        """Keys of the linear layers with a pair, by stack of `layer_stacks`.

        A tower may lack some of its layers' keys, a model one of the stacks.
        """
        text = tuple(TARGETS[name] for name in self.targets)
        linears = {"text": text, "delta": tuple(name for name in text if name in MLP_LINEARS)}
        if self.vision:
            linears["vision"] = VISION_TARGETS
        return linears


def layer_stacks(tree: Params) -> dict[str, Params]:
    """Returns the stacked layers of parameters or an adapter: "text", "delta" and "vision"."""
    stacks = {"text": tree["layers"]}
    if DELTA_LAYERS in tree:
        stacks["delta"] = tree[DELTA_LAYERS]
    if "vision" in tree:
        stacks["vision"] = tree["vision"]["layers"]
    return stacks


def replace_stacks(tree: Params, stacks: Mapping[str, Params]) -> Params:
    """Returns the tree with `stacks` as its `layer_stacks`."""
    result = tree | {"layers": stacks["text"]}
    if stacks.get("delta"):
        result[DELTA_LAYERS] = stacks["delta"]
    if "vision" in stacks:
        result["vision"] = tree.get("vision", {}) | {"layers": stacks["vision"]}
    return result


def _map_kernels(config: LoraConfig, tree: Params, make_pair: Callable[[Any], Params]) -> Params:
    """Makes an adapter by `make_pair` of each kernel in `tree`, which is like the parameters."""
    kernels = layer_stacks(tree)
    adapter: dict[str, Params] = {}
    for stack, names in config.stack_linears.items():
        layers = kernels.get(stack, {})
        own_names = [name for name in names if name in layers]
        adapter[stack] = {name: make_pair(layers[name]["kernel"]) for name in own_names}
    return replace_stacks({}, adapter)


def abstract_adapter(config: DecoderConfig, lora: LoraConfig) -> Params:
    """Shapes and dtypes of `init_adapter`, without allocating anything."""

    def make_pair(kernel: jax.ShapeDtypeStruct) -> Params:
        depth, inputs, outputs = kernel.shape
        return {
            "lora_a": jax.ShapeDtypeStruct((depth, inputs, lora.rank), jnp.float32),
            "lora_b": jax.ShapeDtypeStruct((depth, lora.rank, outputs), jnp.float32),
        }

    return _map_kernels(lora, decoder.abstract_params(config), make_pair)


def init_adapter(config: DecoderConfig, lora: LoraConfig, key: jax.Array) -> Params:
    """Draws a new adapter in float32: A uniform in +-1 / sqrt(I), as in PEFT, and B zero."""
    shapes = layer_stacks(abstract_adapter(config, lora))
    adapter: dict[str, Params] = {stack: {} for stack in shapes}
    linears = [("text", name) for name in TARGETS.values()]
    linears += [("vision", name) for name in VISION_TARGETS]
    linears += [("delta", name) for name in MLP_LINEARS]
    # Numbered over all linear layers: the draw of a pair does not depend on the other targets.
    for number, (stack, name) in enumerate(linears):
        if name not in shapes.get(stack, {}):
            continue
        a = shapes[stack][name]["lora_a"]
        b = shapes[stack][name]["lora_b"]
        bound = a.shape[1] ** -0.5
        pair_key = jax.random.fold_in(key, number)
        adapter[stack][name] = {
            "lora_a": jax.random.uniform(pair_key, a.shape, a.dtype, -bound, bound),
            "lora_b": jnp.zeros(b.shape, b.dtype),
        }
    return replace_stacks({}, adapter)


def adapter_param_count(config: DecoderConfig, lora: LoraConfig) -> int:
    """Number of trained parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_adapter(config, lora)))


def adapter_axes(config: DecoderConfig, lora: LoraConfig) -> Params:
    """Returns the axis names of an adapter: "rank", and the names in `decoder.logical_axes`."""

    def make_pair(kernel: tuple[str, str, str]) -> Params:
        depth, inputs, outputs = kernel
        return {"lora_a": (depth, inputs, "rank"), "lora_b": (depth, "rank", outputs)}

    return _map_kernels(lora, decoder.logical_axes(config), make_pair)


def attach_adapter(params: Params, adapter: Params, scale: float) -> Params:
    """Merges an adapter into the parameter tree without a copy, and multiplies B by `scale`."""
    return insert_pairs(params, scale_adapter(adapter, scale))


def insert_pairs(params: Params, adapter: Params) -> Params:
    """Merges an adapter of scale 1 into a tree of arrays, shapes or shardings."""
    # New dictionaries on the way to the pairs; the given tree must stay as it is.
    stacks = layer_stacks(params)
    for stack, pairs in layer_stacks(adapter).items():
        linears = dict(stacks[stack])
        for name, pair in pairs.items():
            linears[name] = linears[name] | pair
        stacks[stack] = linears
    return replace_stacks(params, stacks)


def scale_adapter(adapter: Params, scale: float) -> Params:
    """Multiplies every B by the scale, so that the result has scale 1."""
    stacks: dict[str, Params] = {}
    for stack, pairs in layer_stacks(adapter).items():
        # B takes the factor, so that the forward pass needs none.
        stacks[stack] = {
            name: pair | {"lora_b": pair["lora_b"] * scale} for name, pair in pairs.items()
        }
    return replace_stacks({}, stacks)


def detach_adapter(params: Params) -> Params | None:
    """Returns the pairs in a tree as an adapter of scale 1, or None if there are no pairs."""
    stacks: dict[str, Params] = {}
    for stack, layers in layer_stacks(params).items():
        pairs = {
            name: {"lora_a": leaves["lora_a"], "lora_b": leaves["lora_b"]}
            for name, leaves in layers.items()
            if "lora_a" in leaves
        }
        if pairs:
            stacks[stack] = pairs
    return replace_stacks({}, stacks) if "text" in stacks else None


def merge_adapter(params: Params, adapter: Params, scale: float) -> Params:
    """Adds an adapter to the kernels, in float32, and keeps the tree and its shardings.

    The kernels with an adapter are donated, and are float32 in the result.
    """
    # bfloat16 would round most of a small change away.
    stacks = {stack: dict(layers) for stack, layers in layer_stacks(params).items()}
    for stack, pairs in layer_stacks(adapter).items():
        layers = stacks[stack]
        for name, pair in pairs.items():
            kernel = layers[name]["kernel"]
            if kernel.dtype != jnp.float32:
                narrow_kernel = kernel
                kernel = kernel.astype(jnp.float32)
                narrow_kernel.delete()  # otherwise memory would hold the model twice
            merged = _add_product(kernel, pair["lora_a"], pair["lora_b"], jnp.float32(scale))
            layers[name] = layers[name] | {"kernel": merged}
    return replace_stacks(params, stacks)


@functools.partial(jax.jit, donate_argnums=0)
def _add_product(kernel: jax.Array, a: jax.Array, b: jax.Array, scale: jax.Array) -> jax.Array:
    # Layer by layer: the products of all layers would take as much memory as the kernels.
    def add_layer(index: jax.Array, kernel: jax.Array) -> jax.Array:
        # Full float32: matrix units use less by default.
        change = scale * jnp.matmul(a[index], b[index], precision=jax.lax.Precision.HIGHEST)
        return kernel.at[index].add(change)

    return jax.lax.fori_loop(0, kernel.shape[0], add_layer, kernel)


def layer_numbers(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Returns the indices in the model of the layers of the decoder's `layer_stacks`."""
    return {"text": config.layer_numbers(LAYERS), "delta": config.layer_numbers(DELTA_LAYERS)}


def adapter_rank(adapter: Params) -> int:
    """Returns R of an adapter or its shapes."""
    # All pairs of an adapter have one rank.
    return next(iter(adapter["layers"].values()))["lora_a"].shape[-1]


def adapter_targets(adapter: Params) -> tuple[str, ...]:
    """Returns the keys of `TARGETS` that have pairs."""
    return tuple(name for name, linear in TARGETS.items() if linear in adapter["layers"])
