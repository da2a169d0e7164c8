"""The vision tower of Qwen2.5-VL: patches of images -> features in the width of the decoder.

Patches stand in the order of the published processor: squares of merge x merge patches row by row, and the patches of a
square row by row. Window attention is a mask over this order; the published code permutes the patches instead.
"""

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from gigpo_jax.models.execution import INPUT
from gigpo_jax.models.images import ReadImage
from gigpo_jax.models.layers import Linear, RMSNorm, adapted_linears
from gigpo_jax.models.rotary import Rotary, rotate
from gigpo_jax.models.vision_config import FRAMES, MEAN, MERGE, STD, VisionConfig


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Images:
    """The images of a batch of texts, each once, and where their features stand.

    Attributes:
      patches: [N, P, 588] u8, values in the order (channel, row, column); zeros after the image's own.
      grid: [N, 2] i32, rows and columns of patches; 0 for no image.
      index: [B, T] i32, for each token the feature in its place, from 0 to N x P / 4 - 1, or -1: the token's embedding.
    """

    patches: Any
    grid: Any
    index: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Features:
    """Images of a batch of texts that are encoded already.

    Attributes:
      values: [B, T, D], the feature in the place of each token.
      used: [B, T] bool, whether there is one.
    """

    values: Any
    used: Any


def pack_images(images: Sequence[ReadImage], index: np.ndarray, *, number: int, longest: int) -> Images:
    """Images as arrays of one size.

    Args:
      images: at most `number`.
      index: [B, T], features counted image by image without gaps, as from `distinct`.
      number: N.
      longest: P.
    """
    values = images[0].patches.shape[1] if images else VisionConfig().patch_values
    patches, grid = np.zeros((number, longest, values), np.uint8), np.zeros((number, 2), np.int32)
    where = []
    for n, image in enumerate(images):
        patches[n, : len(image.patches)] = image.patches
        grid[n] = np.array(image.grid) * MERGE
        where.append(n * longest // MERGE**2 + np.arange(len(image.patches) // MERGE**2))
    spread = np.concatenate([*where, [-1]]).astype(np.int32)
    return Images(patches, grid, spread[index])


class VisionLayer(nnx.Module):
    """One layer of the tower; the linear layers in `adapted` have a low-rank pair (`models.lora`)."""

    def __init__(self, config: VisionConfig, *, dtype: Any, rngs: nnx.Rngs, adapted: Collection[str] = ()) -> None:
        width, inner = config.hidden_size, config.intermediate_size

        def linear(name: str, inputs: int, outputs: int) -> Linear:
            return Linear(inputs, outputs, bias=True, dtype=dtype, rngs=rngs, adapted=name in adapted)

        self.heads = config.num_heads
        self.attention_norm = RMSNorm(width, eps=1e-6, dtype=dtype)
        self.qkv = linear("qkv", width, 3 * width)
        self.out = linear("out", width, width)
        self.mlp_norm = RMSNorm(width, eps=1e-6, dtype=dtype)
        self.gate = linear("gate", width, inner)
        self.up = linear("up", width, inner)
        self.down = linear("down", inner, width)

    def __call__(self, x: jax.Array, angles: Rotary, mask: jax.Array) -> jax.Array:
        """Runs the layer on x [N, P, W]; mask [N, P, P] bool: may the second axis see the third?"""
        query, key, value = jnp.split(self.qkv(self.attention_norm(x)), 3, axis=-1)
        query, key, value = (y.reshape(*y.shape[:-1], self.heads, -1) for y in (query, key, value))
        mixed = jax.nn.dot_product_attention(rotate(query, angles), rotate(key, angles), value, mask=mask[:, None])
        x = x + self.out(mixed.reshape(x.shape))
        y = self.mlp_norm(x)
        return x + self.down(jax.nn.silu(self.gate(y)) * self.up(y))


class VisionTower(nnx.Module):
    """The parameters of the tower: embedding of patches, stacked layers, and the merger of squares."""

    def __init__(self, config: VisionConfig, out: int, *, dtype: Any, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=config.depth)
        @nnx.vmap(in_axes=0)
        def layers(rngs: nnx.Rngs) -> VisionLayer:
            return VisionLayer(config, dtype=dtype, rngs=rngs)

        width, merged = config.hidden_size, MERGE**2 * config.hidden_size
        self.patch = Linear(FRAMES * config.patch_values, width, bias=False, dtype=dtype, rngs=rngs)
        self.layers = layers(rngs)
        self.merger_norm = RMSNorm(width, eps=1e-6, dtype=dtype)
        self.merger_in = Linear(merged, merged, bias=True, dtype=dtype, rngs=rngs)
        self.merger_out = Linear(merged, out, bias=True, dtype=dtype, rngs=rngs)


def logical_axes() -> dict[str, Any]:
    """The axes of the tower's parameters, as `qwen2.logical_axes`."""

    def linear(inputs: str, outputs: str, *stacked: str, bias: bool = True) -> dict[str, Any]:
        return {"kernel": (*stacked, inputs, outputs)} | ({"bias": (*stacked, outputs)} if bias else {})

    inner = {name: linear("embed", "mlp", "layers") for name in ("qkv", "gate", "up")}
    outer = {name: linear("mlp", "embed", "layers") for name in ("out", "down")}
    norms = {name: {"scale": ("layers", "embed")} for name in ("attention_norm", "mlp_norm")}
    return {
        "patch": linear("patch", "embed", bias=False),
        "layers": inner | outer | norms,
        "merger_norm": {"scale": ("embed",)},
        "merger_in": linear("embed", "mlp"),
        "merger_out": linear("mlp", "embed"),
    }


def encode(
    config: VisionConfig,
    params: dict[str, Any],
    patches: jax.Array,
    grid: jax.Array,
    *,
    dtype: Any,
    wrap: Callable[[Callable], Callable] = lambda body: body,
) -> jax.Array:
    """Runs the tower; each image for itself.

    Args:
      config: the shape.
      params: those of a `VisionTower`.
      patches: [N, P, 588] u8.
      grid: [N, 2] i32; both as in `Images`.
      dtype: of the computation.
      wrap: applied to the function of one layer, for rematerialisation.

    Returns:
      [N, P / 4, D], one feature a square; those beyond an image's own have no meaning.
    """
    adapted = adapted_linears(params["layers"])
    layer, norm, merger_in, merger_out = _graphs(config, params["merger_out"]["bias"].shape[0], adapted)
    rows, columns, used = _places(grid, patches.shape[1])
    same = used[:, :, None] & used[:, None, :]
    cells = config.window_size // config.patch_size
    window = (rows // cells) * 2**16 + columns // cells
    inside = same & (window[:, :, None] == window[:, None, :])
    angles = _angles(rows, columns, config.hidden_size // config.num_heads)

    def body(x: jax.Array, inputs: tuple[Any, jax.Array]) -> tuple[jax.Array, None]:
        leaves, full = inputs
        return nnx.merge(layer, leaves)(checkpoint_name(x, INPUT), angles, jnp.where(full, same, inside)), None

    x = _embed_patches(config, params["patch"]["kernel"], patches, dtype)
    full = jnp.zeros(config.depth, bool).at[jnp.array(config.full_layers, int)].set(True)
    x, _ = jax.lax.scan(wrap(body), x, (params["layers"], full))
    x = nnx.merge(norm, params["merger_norm"])(x)
    x = x.reshape(x.shape[0], -1, MERGE**2 * x.shape[-1])
    x = jax.nn.gelu(nnx.merge(merger_in, params["merger_in"])(x), approximate=False)
    return nnx.merge(merger_out, params["merger_out"])(x)


def with_images(
    config: VisionConfig,
    params: dict[str, Any],
    x: jax.Array,
    images: Images | Features,
    wrap: Callable[[Callable], Callable] = lambda body: body,
    constrain: Callable[[jax.Array], jax.Array] = lambda features: features,
) -> jax.Array:
    """The embeddings x [B, T, D] with features in the places of images.

    Other arguments as for `encode`; `constrain` keeps features [N, F, D] split by images.
    """
    if isinstance(images, Features):
        return jnp.where(images.used[..., None], images.values.astype(x.dtype), x)
    features = constrain(encode(config, params, images.patches, images.grid, dtype=x.dtype, wrap=wrap))
    flat, index = features.reshape(-1, features.shape[-1]).astype(x.dtype), images.index
    return jnp.where((index >= 0)[..., None], flat[jnp.maximum(index, 0)], x)


def _embed_patches(config: VisionConfig, kernel: jax.Array, patches: jax.Array, dtype: Any) -> jax.Array:
    # Both frames of a still image are the same, so their kernels can be added.
    kernel = kernel.reshape(3, FRAMES, config.patch_size**2, -1).sum(1).reshape(config.patch_values, -1)
    mean, std = (jnp.repeat(jnp.array(values, jnp.float32), config.patch_size**2) for values in (MEAN, STD))
    values = (patches.astype(jnp.float32) / 255 - mean) / std
    return values.astype(dtype) @ kernel.astype(dtype)


def _places(grid: jax.Array, patches: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Row, column [N, P] i32 of each patch, and whether it belongs to the image [N, P] bool."""
    number = jnp.arange(patches)
    square, inside = number // MERGE**2, number % MERGE**2
    across = jnp.maximum(grid[:, 1:] // MERGE, 1)
    rows = square // across * MERGE + inside // MERGE
    columns = square % across * MERGE + inside % MERGE
    return rows, columns, number < grid[:, :1] * grid[:, 1:]


def _angles(rows: jax.Array, columns: jax.Array, head_dim: int) -> Rotary:
    """The first half of the frequencies turns with the row, the second with the column: [N, P, 1, K / 2] f32 each."""
    frequencies = 1e4 ** -(jnp.arange(0, head_dim // 2, 2, dtype=jnp.float32) / (head_dim // 2))
    angles = [place[..., None, None].astype(jnp.float32) * frequencies for place in (rows, columns)]
    joined = jnp.concatenate(angles, axis=-1)
    return jnp.cos(joined), jnp.sin(joined)


@functools.cache
def _graphs(config: VisionConfig, out: int, adapted: tuple[str, ...]) -> tuple[Any, Any, Any, Any]:
    """What `nnx.merge` combines with the parameters of a layer, and of the merger's three parts."""

    def make() -> tuple[Any, Any, Any, Any]:
        tower = VisionTower(config, out, dtype=jnp.float32, rngs=nnx.Rngs(0))
        layer = VisionLayer(config, dtype=jnp.float32, rngs=nnx.Rngs(0), adapted=adapted)
        return layer, tower.merger_norm, tower.merger_in, tower.merger_out

    return tuple(map(nnx.graphdef, nnx.eval_shape(make)))  # type: ignore[return-value]
