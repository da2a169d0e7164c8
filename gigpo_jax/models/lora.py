"""Low-rank adapters (LoRA, arXiv 2106.09685): y = x W + (alpha / R) (x A) B with W frozen, A and B trained.

An adapter is a separate tree, {"layers": {linear: {"lora_a": [L, I, R], "lora_b": [L, R, O]}}} in float32; one of the
vision tower too has {"vision": {"layers": ..}} beside it. `attach` merges it into the parameter tree of a model, for
every function of `qwen2`, and multiplies B by alpha / R. B starts at 0, so the model is unchanged.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from gigpo_jax.models import qwen2
from gigpo_jax.models.linears import TARGETS, VISION_LINEARS
from gigpo_jax.models.qwen2 import Params, Qwen2Config


@dataclass(frozen=True)
class LoraConfig:
    """The shape of an adapter.

    Attributes:
      rank: R >= 1.
      alpha: > 0; the product of a pair is multiplied by alpha / R.
      targets: linear layers of the decoder with a pair, keys of `TARGETS`.
      vision: whether all linear layers in the blocks of a vision tower have one too.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = tuple(TARGETS)
    vision: bool = False

    @property
    def scale(self) -> float:
        """alpha / R."""
        return self.alpha / self.rank

    @property
    def linears(self) -> dict[str, tuple[str, ...]]:
        """The layers with a pair in each stack (`stacks`), by their names in the parameter tree."""
        text = {"text": tuple(TARGETS[name] for name in self.targets)}
        return text | ({"vision": tuple(VISION_LINEARS)} if self.vision else {})


def stacks(tree: Params) -> dict[str, Params]:
    """The stacked layers in a tree of parameters or an adapter: "text", and "vision" of a tower that is in it."""
    return {"text": tree["layers"]} | ({"vision": tree["vision"]["layers"]} if "vision" in tree else {})


def with_stacks(tree: Params, stacks: Mapping[str, Params]) -> Params:
    """The tree with these in place of its own `stacks`."""
    vision = {"vision": tree.get("vision", {}) | {"layers": stacks["vision"]}} if "vision" in stacks else {}
    return tree | {"layers": stacks["text"]} | vision


def _pairs(config: LoraConfig, tree: Params, make: Callable[[Any], Params]) -> Params:
    """An adapter of what `make` gives for each kernel in a tree like the parameters."""
    of = stacks(tree)
    return with_stacks(
        {}, {part: {name: make(of[part][name]["kernel"]) for name in names} for part, names in config.linears.items()}
    )


def abstract(config: Qwen2Config, lora: LoraConfig) -> Params:
    """The tree of `init` as shapes and dtypes, without allocating anything."""

    def pair(kernel: jax.ShapeDtypeStruct) -> Params:
        depth, inputs, outputs = kernel.shape
        return {
            "lora_a": jax.ShapeDtypeStruct((depth, inputs, lora.rank), jnp.float32),
            "lora_b": jax.ShapeDtypeStruct((depth, lora.rank, outputs), jnp.float32),
        }

    return _pairs(lora, qwen2.abstract_params(config), pair)


def init(config: Qwen2Config, lora: LoraConfig, key: jax.Array) -> Params:
    """Draws a new adapter, float32: A uniform in +-1 / sqrt(I), as in PEFT, B zero."""
    shapes = stacks(abstract(config, lora))
    adapter: dict[str, Params] = {part: {} for part in shapes}
    every = [("text", name) for name in TARGETS.values()] + [("vision", name) for name in VISION_LINEARS]
    for number, (part, name) in enumerate(every):  # a pair does not depend on the other targets
        if name in shapes.get(part, {}):
            a, b = shapes[part][name]["lora_a"], shapes[part][name]["lora_b"]
            bound = a.shape[1] ** -0.5
            drawn = jax.random.uniform(jax.random.fold_in(key, number), a.shape, a.dtype, -bound, bound)
            adapter[part][name] = {"lora_a": drawn, "lora_b": jnp.zeros(b.shape, b.dtype)}
    return with_stacks({}, adapter)


def param_count(config: Qwen2Config, lora: LoraConfig) -> int:
    """The number of trained parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(abstract(config, lora)))


def logical_axes(config: Qwen2Config, lora: LoraConfig) -> Params:
    """Names the axes of an adapter as `qwen2.logical_axes` does: the axes of its kernels, and "rank"."""

    def pair(kernel: tuple[str, str, str]) -> Params:
        depth, inputs, outputs = kernel
        return {"lora_a": (depth, inputs, "rank"), "lora_b": (depth, "rank", outputs)}

    return _pairs(lora, qwen2.logical_axes(config), pair)


def attach(params: Params, adapter: Params, scale: float) -> Params:
    """Merges an adapter into the parameter tree of a model (not copied), with B multiplied by `LoraConfig.scale`."""
    return beside(params, scaled(adapter, scale))


def beside(params: Params, adapter: Params) -> Params:
    """Merges an adapter of scale 1 into a tree; arrays, shapes or shardings."""
    whole = stacks(params)
    for part, pairs in stacks(adapter).items():
        whole[part] = whole[part] | {name: whole[part][name] | pair for name, pair in pairs.items()}
    return with_stacks(params, whole)


def scaled(adapter: Params, scale: float) -> Params:
    """Multiplies every B by the scale; the result has scale 1."""
    return with_stacks(
        {},
        {
            part: {name: pair | {"lora_b": pair["lora_b"] * scale} for name, pair in pairs.items()}
            for part, pairs in stacks(adapter).items()
        },
    )


def detach(params: Params) -> Params | None:
    """The pairs in a tree from `attach` as an adapter of scale 1, None if there are none."""
    found = {
        part: {
            name: {"lora_a": leaves["lora_a"], "lora_b": leaves["lora_b"]}
            for name, leaves in layers.items()
            if "lora_a" in leaves
        }
        for part, layers in stacks(params).items()
    }
    return with_stacks({}, {part: pairs for part, pairs in found.items() if pairs}) if found["text"] else None


def merge(params: Params, adapter: Params, scale: float) -> Params:
    """Adds an adapter to the kernels, in float32: bfloat16 would round most of a small change away.

    The kernels with an adapter are donated; in the result, of the same tree and shardings, they are float32.
    """
    whole = {part: dict(layers) for part, layers in stacks(params).items()}
    for part, pairs in stacks(adapter).items():
        layers = whole[part]
        for name, pair in pairs.items():
            kernel = layers[name]["kernel"]
            if kernel.dtype != jnp.float32:
                narrow, kernel = kernel, kernel.astype(jnp.float32)
                narrow.delete()  # otherwise memory would hold the model twice
            merged = _add(kernel, pair["lora_a"], pair["lora_b"], jnp.float32(scale))
            layers[name] = layers[name] | {"kernel": merged}
    return with_stacks(params, whole)


@functools.partial(jax.jit, donate_argnums=0)
def _add(kernel: jax.Array, a: jax.Array, b: jax.Array, scale: jax.Array) -> jax.Array:
    def one(index: jax.Array, kernel: jax.Array) -> jax.Array:
        # Full float32: matrix units use less by default.
        change = scale * jnp.matmul(a[index], b[index], precision=jax.lax.Precision.HIGHEST)
        return kernel.at[index].add(change)

    return jax.lax.fori_loop(0, kernel.shape[0], one, kernel)


def rank_of(adapter: Params) -> int:
    """Returns R of an adapter or its shapes."""
    return next(iter(adapter["layers"].values()))["lora_a"].shape[-1]


def targets_of(adapter: Params) -> tuple[str, ...]:
    """Returns the keys of `TARGETS` that an adapter has pairs for."""
    return tuple(name for name, ours in TARGETS.items() if ours in adapter["layers"])
