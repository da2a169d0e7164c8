"""The vision tower of Qwen2.5-VL: patches of images -> features in the width of the decoder.

Patches are in the order of the published processor: squares of merge x merge patches row by row,
and the patches of a square row by row. Window attention is a mask over this order; the published
code permutes the patches instead.
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
from gigpo_jax.models.layers import Linear, RMSNorm, adapted_linears
from gigpo_jax.models.rotary import Rotary, rotate
from gigpo_jax.models.vision.images import ImagePatches
from gigpo_jax.models.vision.vision_config import FRAMES, MEAN, MERGE, STD, VisionConfig


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Images:
    """The distinct images of texts, and their features' places.

    The texts are those of a batch.

    Attributes:
      patches: [N, P, 588] u8, values in the order (channel, row, column); zeros after the image's
        own.
      grid: [N, 2] i32, rows and columns of patches; 0 for no image.
      index: [B, T] i32, the feature in the place of each token, from 0 to N x P / 4 - 1, or -1: the
        token's embedding.
    """

    patches: Any
    grid: Any
    index: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Features:
    """Encoded images of a batch of texts.

    Attributes:
      values: [B, T, D], the feature in the place of each token.
      used: [B, T] bool, whether there is one.
    """

    values: Any
    used: Any


def pack_images(
    images: Sequence[ImagePatches], index: np.ndarray, *, number: int, longest: int
) -> Images:
    """Packs images into arrays of one size.

    Args:
      images: images, at most `number`.
      index: [B, T], features counted image by image without gaps; result of `distinct_images`.
      number: N.
      longest: P.
    """
    values = images[0].patches.shape[1] if images else VisionConfig().patch_values
    patches = np.zeros((number, longest, values), np.uint8)
    grid = np.zeros((number, 2), np.int32)
    padded_places = []
    for n, image in enumerate(images):
        patches[n, : len(image.patches)] = image.patches
        grid[n] = np.array(image.grid) * MERGE
        features = np.arange(len(image.patches) // MERGE**2)
        padded_places.append(n * longest // MERGE**2 + features)
    # The last entry is that of index -1.
    padded_index = np.concatenate([*padded_places, [-1]]).astype(np.int32)
    return Images(patches, grid, padded_index[index])


class VisionLayer(nnx.Module):
    """One layer of the tower.

    The linear layers in `adapted` have a low-rank pair.
    """

    def __init__(
        self, config: VisionConfig, *, dtype: Any, rngs: nnx.Rngs, adapted: Collection[str] = ()
    ) -> None:
        width = config.hidden_size
        inner = config.intermediate_size

        def make_linear(name: str, inputs: int, outputs: int) -> Linear:
            return Linear(
                inputs, outputs, bias=True, dtype=dtype, rngs=rngs, adapted=name in adapted
            )

        self.heads = config.num_heads
        self.attention_norm = RMSNorm(width, eps=1e-6, dtype=dtype)
        self.qkv = make_linear("qkv", width, 3 * width)
        self.out = make_linear("out", width, width)
        self.mlp_norm = RMSNorm(width, eps=1e-6, dtype=dtype)
        self.gate = make_linear("gate", width, inner)
        self.up = make_linear("up", width, inner)
        self.down = make_linear("down", inner, width)

    def __call__(self, x: jax.Array, angles: Rotary, mask: jax.Array) -> jax.Array:
        """Runs the layer on x [N, P, W].

        The mask [N, P, P] bool tells whether the second axis may see the third.
        """
        qkv = jnp.split(self.qkv(self.attention_norm(x)), 3, axis=-1)
        query, key, value = (y.reshape(*y.shape[:-1], self.heads, -1) for y in qkv)
        mixed = jax.nn.dot_product_attention(
            rotate(query, angles), rotate(key, angles), value, mask=mask[:, None]
        )
        x = x + self.out(mixed.reshape(x.shape))
        y = self.mlp_norm(x)
        return x + self.down(jax.nn.silu(self.gate(y)) * self.up(y))


class VisionTower(nnx.Module):
    """Parameters of the tower.

    They are the patch embedding, stacked layers, and the merger of squares.
    """

    def __init__(self, config: VisionConfig, out: int, *, dtype: Any, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=config.depth)
        @nnx.vmap(in_axes=0)
        def make_layers(rngs: nnx.Rngs) -> VisionLayer:
            return VisionLayer(config, dtype=dtype, rngs=rngs)

        width = config.hidden_size
        merged = MERGE**2 * width
        self.patch = Linear(FRAMES * config.patch_values, width, bias=False, dtype=dtype, rngs=rngs)
        self.layers = make_layers(rngs)
        self.merger_norm = RMSNorm(width, eps=1e-6, dtype=dtype)
        self.merger_in = Linear(merged, merged, bias=True, dtype=dtype, rngs=rngs)
        self.merger_out = Linear(merged, out, bias=True, dtype=dtype, rngs=rngs)


def logical_axes() -> dict[str, Any]:
    """Axis names of the tower's parameters, as those of `decoder.logical_axes`."""
    layers: dict[str, Any] = {}
    for name in ("qkv", "gate", "up"):
        layers[name] = {"kernel": ("layers", "embed", "mlp"), "bias": ("layers", "mlp")}
    for name in ("out", "down"):
        layers[name] = {"kernel": ("layers", "mlp", "embed"), "bias": ("layers", "embed")}
    for name in ("attention_norm", "mlp_norm"):
        layers[name] = {"scale": ("layers", "embed")}
    return {
        "patch": {"kernel": ("patch", "embed")},
        "layers": layers,
        "merger_norm": {"scale": ("embed",)},
        "merger_in": {"kernel": ("embed", "mlp"), "bias": ("mlp",)},
        "merger_out": {"kernel": ("mlp", "embed"), "bias": ("embed",)},
    }


def encode_images(
    config: VisionConfig,
    params: dict[str, Any],
    patches: jax.Array,
    grid: jax.Array,
    *,
    dtype: Any,
    wrap: Callable[[Callable], Callable] = lambda function: function,
) -> jax.Array:
    """Runs the tower; images do not see each other.

    Args:
      config: shape of the tower.
      params: parameters of a `VisionTower`.
      patches: [N, P, 588] u8, as in `Images`.
      grid: [N, 2] i32, as in `Images`.
      dtype: compute dtype.
      wrap: wrapper of the function of one layer, for rematerialisation.

    Returns:
      [N, P / 4, D], one feature a square; those beyond an image's own have no meaning.
    """
    adapted = adapted_linears(params["layers"])
    out_width = params["merger_out"]["bias"].shape[0]
    layer, norm, merger_in, merger_out = _module_graphs(config, out_width, adapted)
    rows, columns, used = _locate_patches(grid, patches.shape[1])
    # Padding sees nothing: `dot_product_attention` masks with a finite number, so the result has no
    # NaN. It is read by no token.
    image_mask = used[:, :, None] & used[:, None, :]
    side = config.window_size // config.patch_size
    # One number for each window: no image has 2^16 windows in a row.
    window = (rows // side) * 2**16 + columns // side
    window_mask = image_mask & (window[:, :, None] == window[:, None, :])
    angles = _rotary_angles(rows, columns, config.hidden_size // config.num_heads)

    def run_layer(x: jax.Array, inputs: tuple[Any, jax.Array]) -> tuple[jax.Array, None]:
        leaves, is_full = inputs
        mask = jnp.where(is_full, image_mask, window_mask)
        return nnx.merge(layer, leaves)(checkpoint_name(x, INPUT), angles, mask), None

    x = _embed_patches(config, params["patch"]["kernel"], patches, dtype)
    # A scanned flag, so that layers with and without windows share one compiled body.
    is_full = jnp.zeros(config.depth, bool).at[jnp.array(config.full_layers, int)].set(True)
    x, _ = jax.lax.scan(wrap(run_layer), x, (params["layers"], is_full))
    x = nnx.merge(norm, params["merger_norm"])(x)
    # The patches of a square are neighbours, so that a reshape joins them.
    x = x.reshape(x.shape[0], -1, MERGE**2 * x.shape[-1])
    # The published merger has the exact GELU; jax's default is the approximation with tanh.
    x = jax.nn.gelu(nnx.merge(merger_in, params["merger_in"])(x), approximate=False)
    return nnx.merge(merger_out, params["merger_out"])(x)


def insert_images(
    config: VisionConfig,
    params: dict[str, Any],
    x: jax.Array,
    images: Images | Features,
    wrap: Callable[[Callable], Callable] = lambda function: function,
    constrain: Callable[[jax.Array], jax.Array] = lambda features: features,
) -> jax.Array:
    """Puts features into the places of images.

    The places are among the embeddings x [B, T, D]. Other arguments as for `encode_images`;
    `constrain` keeps features [N, F, D] split by images.
    """
    if isinstance(images, Features):
        return jnp.where(images.used[..., None], images.values.astype(x.dtype), x)
    features = constrain(
        encode_images(config, params, images.patches, images.grid, dtype=x.dtype, wrap=wrap)
    )
    # `index` counts features with the padding of every image; see `pack_images`.
    flat = features.reshape(-1, features.shape[-1]).astype(x.dtype)
    # Index 0 in place of -1 keeps the gather in bounds; `where` drops the row, also in the
    # gradient.
    is_image = (images.index >= 0)[..., None]
    return jnp.where(is_image, flat[jnp.maximum(images.index, 0)], x)


def _embed_patches(
    config: VisionConfig, kernel: jax.Array, patches: jax.Array, dtype: Any
) -> jax.Array:
    # Both frames of a still image are the same, so their kernels can be added.
    frame_kernels = kernel.reshape(3, FRAMES, config.patch_size**2, -1)
    kernel = frame_kernels.sum(1).reshape(config.patch_values, -1)
    mean = jnp.repeat(jnp.array(MEAN, jnp.float32), config.patch_size**2)
    std = jnp.repeat(jnp.array(STD, jnp.float32), config.patch_size**2)
    values = (patches.astype(jnp.float32) / 255 - mean) / std
    return values.astype(dtype) @ kernel.astype(dtype)


def _locate_patches(grid: jax.Array, num_patches: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns row and column of each patch, and a mask.

    Rows and columns are [N, P] i32; the mask, bool [N, P], tells whether the image has the patch.
    """
    number = jnp.arange(num_patches)
    square = number // MERGE**2
    offset = number % MERGE**2
    # The grid of no image is 0, by which nothing can be divided.
    squares_a_row = jnp.maximum(grid[:, 1:] // MERGE, 1)
    rows = square // squares_a_row * MERGE + offset // MERGE
    columns = square % squares_a_row * MERGE + offset % MERGE
    return rows, columns, number < grid[:, :1] * grid[:, 1:]


def _rotary_angles(rows: jax.Array, columns: jax.Array, head_dim: int) -> Rotary:
    """Returns cosines and sines of the rotation of patches.

    Both are [N, P, 1, K / 2] f32. The first half of the frequencies turns with the row, the second
    with the column.
    """
    # The base is fixed in the published tower; no config names it.
    frequencies = 1e4 ** -(jnp.arange(0, head_dim // 2, 2, dtype=jnp.float32) / (head_dim // 2))
    row_angles = rows[..., None, None].astype(jnp.float32) * frequencies
    column_angles = columns[..., None, None].astype(jnp.float32) * frequencies
    angles = jnp.concatenate([row_angles, column_angles], axis=-1)
    return jnp.cos(angles), jnp.sin(angles)


@functools.cache
def _module_graphs(
    config: VisionConfig, out: int, adapted: tuple[str, ...]
) -> tuple[Any, Any, Any, Any]:
    """Returns graphs of the tower's modules for `nnx.merge`.

    They are those of a layer, and of the merger's norm and linear layers.
    """

    def make_modules() -> tuple[Any, Any, Any, Any]:
        tower = VisionTower(config, out, dtype=jnp.float32, rngs=nnx.Rngs(0))
        layer = VisionLayer(config, dtype=jnp.float32, rngs=nnx.Rngs(0), adapted=adapted)
        return layer, tower.merger_norm, tower.merger_in, tower.merger_out

    return tuple(map(nnx.graphdef, nnx.eval_shape(make_modules)))  # type: ignore[return-value]
