"""The vision towers of Qwen2.5-VL and Qwen3-VL: patches of images -> features for the decoder.

Patches are in the order of the published processor: squares of merge x merge patches row by row,
and the patches of a square row by row. Window attention of Qwen2.5-VL is a mask over this order;
the published code permutes the patches instead. In Qwen3-VL a patch has a learned position, and the
results of some layers are features beside the result of the last one.
"""

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from gigpo_jax.models.execution import INPUT
from gigpo_jax.models.layers import Linear, RMSNorm, adapted_linears, draw_normal
from gigpo_jax.models.rotary import Rotary, rotate
from gigpo_jax.models.vision.images import ImagePatches
from gigpo_jax.models.vision.vision_config import FRAMES, MERGE, NORMALIZATION, VL, VisionConfig


class LayerNorm(nnx.Module):
    """Layer normalization, (x [..., D] - mean(x)) / std(x) * scale + bias.

    Its statistics are float32, whatever the dtype of x.
    """

    def __init__(self, width: int, *, eps: float, dtype: Any) -> None:
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,), dtype))
        self.bias = nnx.Param(jnp.zeros((width,), dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        x32 = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        x32 = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.eps)
        return (x32 * self.scale[...] + self.bias[...]).astype(x.dtype)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Images:
    """The distinct images of a batch of texts, and the places of their features.

    Attributes:
      patches: [N, P, C] u8, C = `VisionConfig.patch_values` in the order (channel, row, column);
        zeros after the image's own.
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
      values: [B, T, E], the feature in the place of each token; E as for `encode_images`.
      used: [B, T] bool, whether there is one.
    """

    values: Any
    used: Any


def pack_images(
    images: Sequence[ImagePatches], index: np.ndarray, *, number: int, longest: int, values: int
) -> Images:
    """Packs images into arrays of one size.

    Args:
      images: images, at most `number`.
      index: [B, T], features counted image by image without gaps; result of `distinct_images`.
      number: N.
      longest: P.
      values: C.
    """
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
    """One layer of the tower; the linear layers in `adapted` have a low-rank pair."""

    def __init__(
        self, config: VisionConfig, *, dtype: Any, rngs: nnx.Rngs, adapted: Collection[str] = ()
    ) -> None:
        width = config.hidden_size
        inner = config.intermediate_size

        def make_linear(name: str, inputs: int, outputs: int) -> Linear:
            return Linear(
                inputs, outputs, bias=True, dtype=dtype, rngs=rngs, adapted=name in adapted
            )

        make_norm = _norm_class(config)
        self.heads = config.num_heads
        self.attention_norm = make_norm(width, eps=1e-6, dtype=dtype)
        self.qkv = make_linear("qkv", width, 3 * width)
        self.out = make_linear("out", width, width)
        self.mlp_norm = make_norm(width, eps=1e-6, dtype=dtype)
        if config.model_type == VL:
            self.gate = make_linear("gate", width, inner)
        self.up = make_linear("up", width, inner)
        self.down = make_linear("down", inner, width)

    def __call__(self, x: jax.Array, angles: Rotary, mask: jax.Array) -> jax.Array:
        """Runs the layer on x [N, P, W] with a mask [N, P, P] bool.

        The mask tells whether a patch (second axis) may see a patch (third axis).
        """
        qkv = jnp.split(self.qkv(self.attention_norm(x)), 3, axis=-1)
        query, key, value = (y.reshape(*y.shape[:-1], self.heads, -1) for y in qkv)
        mixed = jax.nn.dot_product_attention(
            rotate(query, angles), rotate(key, angles), value, mask=mask[:, None]
        )
        x = x + self.out(mixed.reshape(x.shape))
        y = self.mlp_norm(x)
        if hasattr(self, "gate"):
            return x + self.down(jax.nn.silu(self.gate(y)) * self.up(y))
        return x + self.down(jax.nn.gelu(self.up(y), approximate=True))


def _norm_class(config: VisionConfig) -> type[RMSNorm | LayerNorm]:
    return RMSNorm if config.model_type == VL else LayerNorm


Merger = tuple[nnx.Module, Linear, Linear]  # norm, and layers around a GELU


class VisionTower(nnx.Module):
    """Parameters of the tower: patch embedding, learned positions if any, layers, mergers.

    The layers are stacked. There is a merger of squares, and one for each of `deep_layers`,
    stacked.
    """

    def __init__(self, config: VisionConfig, out: int, *, dtype: Any, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=config.depth)
        @nnx.vmap(in_axes=0)
        def make_layers(rngs: nnx.Rngs) -> VisionLayer:
            return VisionLayer(config, dtype=dtype, rngs=rngs)

        def make_merger(norm_width: int, rngs: nnx.Rngs) -> Merger:
            return (
                _norm_class(config)(norm_width, eps=1e-6, dtype=dtype),
                Linear(merged, merged, bias=True, dtype=dtype, rngs=rngs),
                Linear(merged, out, bias=True, dtype=dtype, rngs=rngs),
            )

        @nnx.split_rngs(splits=len(config.deep_layers))
        @nnx.vmap(in_axes=0)
        def make_deep_mergers(rngs: nnx.Rngs) -> Merger:
            return make_merger(merged, rngs)

        width = config.hidden_size
        merged = MERGE**2 * width
        has_positions = config.num_positions > 0
        patch_width = FRAMES * config.patch_values
        self.patch = Linear(patch_width, width, bias=has_positions, dtype=dtype, rngs=rngs)
        self.layers = make_layers(rngs)
        self.merger_norm, self.merger_in, self.merger_out = make_merger(width, rngs)
        if has_positions:
            self.positions = nnx.Param(draw_normal(rngs, (config.num_positions, width), dtype))
        if config.deep_layers:
            self.deep_norm, self.deep_in, self.deep_out = make_deep_mergers(rngs)


def logical_axes(config: VisionConfig) -> dict[str, Any]:
    """Axis names of the tower's parameters, as in `decoder.logical_axes`."""

    def make_linear(inputs: str, outputs: str, *stack: str) -> dict[str, Any]:
        return {"kernel": (*stack, inputs, outputs), "bias": (*stack, outputs)}

    def make_norm(*stack: str) -> dict[str, Any]:
        leaves = ("scale",) if config.model_type == VL else ("scale", "bias")
        return dict.fromkeys(leaves, (*stack, "embed"))

    def make_merger(name: str, *stack: str) -> dict[str, Any]:
        return {
            f"{name}_norm": make_norm(*stack),
            f"{name}_in": make_linear("embed", "mlp", *stack),
            f"{name}_out": make_linear("mlp", "embed", *stack),
        }

    layers = {name: make_linear("embed", "mlp", "layers") for name in ("qkv", "up")}
    if config.model_type == VL:
        layers["gate"] = make_linear("embed", "mlp", "layers")
    layers |= {name: make_linear("mlp", "embed", "layers") for name in ("out", "down")}
    layers |= {name: make_norm("layers") for name in ("attention_norm", "mlp_norm")}
    axes = {"patch": make_linear("patch", "embed"), "layers": layers} | make_merger("merger")
    if config.num_positions:
        axes["positions"] = ("patch", "embed")
    else:
        del axes["patch"]["bias"]
    if config.deep_layers:
        axes |= make_merger("deep", "layers")
    return axes


def encode_images(
    config: VisionConfig,
    params: dict[str, Any],
    patches: jax.Array,
    grid: jax.Array,
    *,
    dtype: Any,
    wrap: Callable[[Callable, int], Callable] = lambda function, turns: function,
) -> jax.Array:
    """Runs the tower; images do not see each other.

    Args:
      config: shape of the tower.
      params: parameters of a `VisionTower`.
      patches: [N, P, C] u8, as in `Images`.
      grid: [N, 2] i32, as in `Images`.
      dtype: compute dtype.
      wrap: wrapper of the function of one layer, for rematerialisation; it takes the number of
        layers too.

    Returns:
      [N, P / 4, E], one feature a square; features beyond an image's own have no meaning. E is D
      for each of `VisionConfig.feature_parts`: the last layer, then `deep_layers`.
    """
    adapted = adapted_linears(params["layers"])
    out_width = params["merger_out"]["bias"].shape[0]
    layer, *merger = _module_graphs(config, out_width, adapted)
    rows, columns, used = _locate_patches(grid, patches.shape[1])
    image_mask, window_mask = _make_masks(config, rows, columns, used)
    angles = _rotary_angles(rows, columns, config.hidden_size // config.num_heads)

    def run_layer(x: jax.Array, inputs: tuple[Any, jax.Array]) -> tuple[jax.Array, None]:
        leaves, is_full = inputs
        mask = jnp.where(is_full, image_mask, window_mask)
        return nnx.merge(layer, leaves)(checkpoint_name(x, INPUT), angles, mask), None

    def run_merger(leaves: Sequence[Any], x: jax.Array) -> jax.Array:
        norm, inner, outer = map(nnx.merge, merger, leaves)
        # The patches of a square are neighbours, so that a reshape joins them, before the norm or
        # after it.
        x = norm(x.reshape(x.shape[0], -1, norm.scale.shape[-1]))
        x = x.reshape(x.shape[0], -1, MERGE**2 * config.hidden_size)
        # The published merger has the exact GELU; jax's default is the approximation with tanh.
        return outer(jax.nn.gelu(inner(x), approximate=False))

    x = _embed_patches(config, params["patch"], patches, dtype)
    if config.num_positions:
        x = x + _interpolate_positions(params["positions"], rows, columns, grid).astype(x.dtype)
    # A scanned flag, so that layers with and without windows share one compiled body.
    is_full = jnp.zeros(config.depth, bool).at[jnp.array(config.full_layers, int)].set(True)
    inputs = (params["layers"], is_full)
    run_wrapped = wrap(run_layer, config.depth)
    if not config.deep_layers:
        x, _ = jax.lax.scan(run_wrapped, x, inputs)
        return run_merger(_merger_leaves(params, "merger"), x)

    # Results of the other layers go to a last place that nobody reads. Those of all layers, as
    # results of the scan, would take several times the memory.
    count = len(config.deep_layers)
    places = jnp.full(config.depth, count).at[jnp.array(config.deep_layers)].set(jnp.arange(count))

    def run_and_keep(carry: tuple[jax.Array, jax.Array], inputs: Any) -> tuple[Any, None]:
        layer_inputs, place = inputs
        x, _ = run_wrapped(carry[0], layer_inputs)
        return (x, jax.lax.dynamic_update_index_in_dim(carry[1], x, place, 0)), None

    kept = jnp.zeros((count + 1, *x.shape), x.dtype)
    (x, kept), _ = jax.lax.scan(run_and_keep, (x, kept), (inputs, places))
    deep = jax.vmap(run_merger)(_merger_leaves(params, "deep"), kept[:-1])
    return jnp.concatenate([run_merger(_merger_leaves(params, "merger"), x), *deep], axis=-1)


def _make_masks(
    config: VisionConfig, rows: jax.Array, columns: jax.Array, used: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Masks [N, P, P] of patches that see each other, in whole images and in windows."""
    # Padding sees nothing: `dot_product_attention` masks with a finite number, so the result has no
    # NaN. It is read by no token.
    image_mask = used[:, :, None] & used[:, None, :]
    if not config.window_size:
        return image_mask, image_mask
    side = config.window_size // config.patch_size
    # One number for each window: no image has 2^16 windows in a row.
    window = (rows // side) * 2**16 + columns // side
    return image_mask, image_mask & (window[:, :, None] == window[:, None, :])


def _merger_leaves(params: dict[str, Any], name: str) -> list[Any]:
    return [params[f"{name}_{part}"] for part in ("norm", "in", "out")]


def insert_images(
    config: VisionConfig,
    params: dict[str, Any],
    x: jax.Array,
    images: Images | Features,
    wrap: Callable[[Callable, int], Callable] = lambda function, turns: function,
    constrain: Callable[[jax.Array], jax.Array] = lambda features: features,
) -> tuple[jax.Array, jax.Array | None]:
    """Puts features into the places of images among the embeddings x [B, T, D].

    Other arguments are as for `encode_images`; `constrain` keeps features [N, F, E] split by
    images.

    Returns:
      The embeddings, and the argument of `add_deep_features`.
    """
    if isinstance(images, Features):
        is_image = images.used[..., None]
        values = images.values.astype(x.dtype)
    else:
        features = constrain(
            encode_images(config, params, images.patches, images.grid, dtype=x.dtype, wrap=wrap)
        )
        # `index` counts features with the padding of every image; see `pack_images`.
        flat = features.reshape(-1, features.shape[-1]).astype(x.dtype)
        # Index 0 in place of -1 keeps the gather in bounds; `where` drops the row, also in the
        # gradient.
        is_image = (images.index >= 0)[..., None]
        values = flat[jnp.maximum(images.index, 0)]
    value, *deep_values = jnp.split(values, config.feature_parts, axis=-1)
    zeros = jnp.zeros_like(x)
    deep = [jnp.where(is_image, part, zeros) for part in deep_values]
    return jnp.where(is_image, value, x), jnp.stack([*deep, zeros]) if deep else None


def _embed_patches(
    config: VisionConfig, params: dict[str, jax.Array], patches: jax.Array, dtype: Any
) -> jax.Array:
    # Both frames of a still image are the same, so their kernels can be added.
    frame_kernels = params["kernel"].reshape(3, FRAMES, config.patch_size**2, -1)
    kernel = frame_kernels.sum(1).reshape(config.patch_values, -1)
    mean, std = (
        jnp.repeat(jnp.array(numbers, jnp.float32), config.patch_size**2)
        for numbers in NORMALIZATION[config.model_type]
    )
    values = (patches.astype(jnp.float32) / 255 - mean) / std
    x = values.astype(dtype) @ kernel.astype(dtype)
    return x + params["bias"].astype(dtype) if "bias" in params else x


def _interpolate_positions(
    table: jax.Array, rows: jax.Array, columns: jax.Array, grid: jax.Array
) -> jax.Array:
    """Returns learned positions of patches, [N, P, W] f32, from a square table [G x G, W].

    The table is stretched over each image, corner on corner, and interpolated bilinearly. Other
    arguments are results of `_locate_patches` and its `grid`.
    """
    side = math.isqrt(len(table))
    table = table.astype(jnp.float32)

    def find_neighbours(index: jax.Array, size: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        place = index.astype(jnp.float32) * (side - 1) / jnp.maximum(size - 1, 1)[:, None]
        lower = jnp.floor(place)
        first = lower.astype(jnp.int32)
        # On the last line the second neighbour has weight 0; bounds keep the indices valid, also
        # those of padding.
        lines = [jnp.clip(line, 0, side - 1) for line in (first, first + 1)]
        return list(zip(lines, (1 - (place - lower), place - lower), strict=True))

    total = jnp.zeros((), jnp.float32)
    for row, row_weight in find_neighbours(rows, grid[:, 0]):
        for column, column_weight in find_neighbours(columns, grid[:, 1]):
            total += (row_weight * column_weight)[..., None] * table[row * side + column]
    return total


def _locate_patches(grid: jax.Array, num_patches: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns row and column of each patch, [N, P] i32, and a mask [N, P] bool of patches.

    A patch in the mask belongs to the image.
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
    """Returns cosines and sines of the rotation of patches, [N, P, 1, K / 2] f32 each.

    The first half of the frequencies turns with the row, the second with the column.
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
    """Returns graphs for `nnx.merge`: of a layer, the merger's norm and its linear layers."""

    def make_modules() -> tuple[Any, Any, Any, Any]:
        tower = VisionTower(config, out, dtype=jnp.float32, rngs=nnx.Rngs(0))
        layer = VisionLayer(config, dtype=jnp.float32, rngs=nnx.Rngs(0), adapted=adapted)
        # Mergers of `deep_layers` have the same structure as the one of the last layer.
        return layer, tower.merger_norm, tower.merger_in, tower.merger_out

    return tuple(map(nnx.graphdef, nnx.eval_shape(make_modules)))  # type: ignore[return-value]


def add_deep_features(
    x: jax.Array,
    deep: jax.Array,
    layer: jax.Array | int,
    select: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """Adds the features that belong behind a decoder layer.

    Args:
      x: result of the layer, of the tokens that `select` selects.
      deep: [1 + layers with features, B, T, D], zeros in the last row.
      layer: index of the layer.
      select: selection of tokens of [B, T, D].
    """
    return x + select(deep[jnp.minimum(layer, len(deep) - 1)])
