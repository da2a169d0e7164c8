"""Low-rank adapters (LoRA, arXiv 2106.09685): y = x W + (alpha / R) (x A) B with W frozen, A and B trained.

An adapter is a separate tree, {"layers": {linear: {"lora_a": [L, I, R], "lora_b": [L, R, O]}}} in float32. `attach`
merges it into the parameter tree of a model, for every function of `qwen2`, and multiplies B by alpha / R. B starts at
0, so the model is unchanged.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from gigpo_jax.models import qwen2
from gigpo_jax.models.linears import TARGETS
from gigpo_jax.models.qwen2 import Params, Qwen2Config


@dataclass(frozen=True)
class LoraConfig:
    """The shape of an adapter.

    Attributes:
      rank: R >= 1.
      alpha: > 0; the product of a pair is multiplied by alpha / R.
      targets: linear layers with a pair, keys of `TARGETS`.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = tuple(TARGETS)

    @property
    def scale(self) -> float:
        """alpha / R."""
        return self.alpha / self.rank


def abstract(config: Qwen2Config, lora: LoraConfig) -> Params:
    """The tree of `init` as shapes and dtypes, without allocating anything."""
    layers = qwen2.abstract_params(config)["layers"]

    def pair(kernel: jax.ShapeDtypeStruct) -> Params:
        depth, inputs, outputs = kernel.shape
        return {
            "lora_a": jax.ShapeDtypeStruct((depth, inputs, lora.rank), jnp.float32),
            "lora_b": jax.ShapeDtypeStruct((depth, lora.rank, outputs), jnp.float32),
        }

    return {"layers": {TARGETS[name]: pair(layers[TARGETS[name]]["kernel"]) for name in lora.targets}}


def init(config: Qwen2Config, lora: LoraConfig, key: jax.Array) -> Params:
    """Draws a new adapter, float32: A uniform in +-1 / sqrt(I), as in PEFT, B zero."""
    shapes = abstract(config, lora)
    adapter: Params = {}
    for number, name in enumerate(TARGETS.values()):  # a pair does not depend on the other targets
        if name in shapes["layers"]:
            a, b = shapes["layers"][name]["lora_a"], shapes["layers"][name]["lora_b"]
            bound = a.shape[1] ** -0.5
            drawn = jax.random.uniform(jax.random.fold_in(key, number), a.shape, a.dtype, -bound, bound)
            adapter[name] = {"lora_a": drawn, "lora_b": jnp.zeros(b.shape, b.dtype)}
    return {"layers": adapter}


def param_count(config: Qwen2Config, lora: LoraConfig) -> int:
    """The number of trained parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(abstract(config, lora)))


def logical_axes(config: Qwen2Config, lora: LoraConfig) -> Params:
    """Names the axes of an adapter as `qwen2.logical_axes` does: the axes of its kernels, and "rank"."""
    layers = qwen2.logical_axes(config)["layers"]

    def pair(depth: str, inputs: str, outputs: str) -> Params:
        return {"lora_a": (depth, inputs, "rank"), "lora_b": (depth, "rank", outputs)}

    return {"layers": {TARGETS[name]: pair(*layers[TARGETS[name]]["kernel"]) for name in lora.targets}}


def attach(params: Params, adapter: Params, scale: float) -> Params:
    """Merges an adapter into the parameter tree of a model (not copied), with B multiplied by `LoraConfig.scale`."""
    layers = dict(params["layers"])
    for name, pair in scaled(adapter, scale)["layers"].items():
        layers[name] = layers[name] | pair
    return params | {"layers": layers}


def scaled(adapter: Params, scale: float) -> Params:
    """Multiplies every B by the scale; the result has scale 1."""
    layers = adapter["layers"].items()
    return {"layers": {name: {"lora_a": pair["lora_a"], "lora_b": pair["lora_b"] * scale} for name, pair in layers}}


def detach(params: Params) -> Params | None:
    """The pairs in a tree from `attach` as an adapter of scale 1, None if there are none."""
    layers = {
        name: {"lora_a": leaves["lora_a"], "lora_b": leaves["lora_b"]}
        for name, leaves in params["layers"].items()
        if "lora_a" in leaves
    }
    return {"layers": layers} if layers else None


def merge(params: Params, adapter: Params, scale: float) -> Params:
    """Adds an adapter to the kernels, in float32: bfloat16 would round most of a small change away.

    The kernels with an adapter are donated; in the result, of the same tree and shardings, they are float32.
    """
    layers = dict(params["layers"])
    for name, pair in adapter["layers"].items():
        kernel = layers[name]["kernel"]
        if kernel.dtype != jnp.float32:
            narrow, kernel = kernel, kernel.astype(jnp.float32)
            narrow.delete()  # otherwise memory would hold the model twice
        merged = _add(kernel, pair["lora_a"], pair["lora_b"], jnp.float32(scale))
        layers[name] = layers[name] | {"kernel": merged}
    return params | {"layers": layers}


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
