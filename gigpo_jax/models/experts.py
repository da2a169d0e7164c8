"""Mixtures of experts: a token goes through k of E SwiGLU blocks, and no token is dropped.

Shapes: N tokens, D width of the residual stream, E experts, k experts of a token, F width inside an
expert, R = N k pairs of token and expert.

The pairs are sorted by expert, so that the tokens of an expert are neighbouring rows, and every
product is one product of matrices a group of rows. Nothing of the size N x E x D is made, and all
shapes are static, whatever the router chooses.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from gigpo_jax.models.execution import Experts
from gigpo_jax.models.expert_config import ExpertConfig
from gigpo_jax.models.layers import draw_normal

# Up to so many tokens all experts see all tokens, because their weights then take longer to read
# than to multiply, and would be copied in blocks. On accelerators estimates from peak FLOP/s and
# bandwidth (v5p: 166 tokens, v5e: about 240); on CPUs measured (benchmarks/experts.py).
FEW_TOKENS = {"cpu": 128, "gpu": 256, "hopper": 256, "tpu": 256}
SMALLEST_BLOCK = 8  # rows
# Rows of a tile of the TPU kernel for gradients of matrices, and the longest sides of its result.
TILE_ROWS = (128, 512)
TILE_SIDE = 1024


class Router(nnx.Module):
    """Chooses the experts of a token and weighs them.

    x [.., D] -> ids [.., k] i32 and gates [.., k] f32.
    """

    def __init__(self, width: int, experts: ExpertConfig, *, dtype: Any, rngs: nnx.Rngs) -> None:
        self.experts = experts
        self.kernel = nnx.Param(draw_normal(rngs, (width, experts.count), dtype))

    def __call__(
        self, x: jax.Array, replayed: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Routes tokens.

        Args:
          x: [.., D].
          replayed: [.., k] integers, experts in place of those that would be chosen; None: the
            likeliest. The gates are computed from x in both cases.
        """
        # The kernel is rounded to the dtype of x, as an engine's copy of it is; all else is
        # float32: experts of nearly equal scores must not change with the last bits.
        scores = jnp.matmul(
            x.reshape(-1, x.shape[-1]),
            self.kernel[...].astype(x.dtype),
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        probs = jax.nn.softmax(scores, axis=-1).reshape(*x.shape[:-1], -1)
        if replayed is None:
            gates, ids = jax.lax.top_k(probs, self.experts.per_token)
        else:
            ids = replayed.astype(jnp.int32)
            gates = jnp.take_along_axis(probs, ids, axis=-1)
        if self.experts.normalized:
            gates = gates / jnp.sum(gates, axis=-1, keepdims=True)
        return ids, gates


class ExpertKernels(nnx.Module):
    """The matrices of all experts, [E, I, O]."""

    def __init__(self, shape: tuple[int, int, int], *, dtype: Any, rngs: nnx.Rngs) -> None:
        self.kernel = nnx.Param(draw_normal(rngs, shape, dtype))


EXPERT_AXES: dict[str, Any] = {
    "router": {"kernel": ("layers", "embed", "router")},
    "expert_gate": {"kernel": ("layers", "expert", "embed", "expert_mlp")},
    "expert_up": {"kernel": ("layers", "expert", "embed", "expert_mlp")},
    "expert_down": {"kernel": ("layers", "expert", "expert_mlp", "embed")},
}


def make_experts(
    width: int, experts: ExpertConfig, *, dtype: Any, rngs: nnx.Rngs
) -> dict[str, nnx.Module]:
    """Makes the router and the experts of a layer, by their keys in the parameters."""
    make_kernels = functools.partial(ExpertKernels, dtype=dtype, rngs=rngs)
    return {
        "router": Router(width, experts, dtype=dtype, rngs=rngs),
        "expert_gate": make_kernels((experts.count, width, experts.width)),
        "expert_up": make_kernels((experts.count, width, experts.width)),
        "expert_down": make_kernels((experts.count, experts.width, width)),
    }


def apply_layer(
    layer: Any, y: jax.Array, experts: Experts | None, routes: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Applies the experts of a `Layer`; arguments and ids as for its call."""
    ids, gates = layer.router(y, routes)
    kernels = (layer.expert_gate, layer.expert_up, layer.expert_down)
    matrices = [matrix.kernel[...].astype(y.dtype) for matrix in kernels]
    return (experts or apply_experts)(y, ids, gates, *matrices), ids


def apply_experts(
    x: jax.Array,
    ids: jax.Array,
    gates: jax.Array,
    gate: jax.Array,
    up: jax.Array,
    down: jax.Array,
    *,
    kernels: str | None = None,
) -> jax.Array:
    """Computes the weighted sum of each token's experts.

    On TPUs by `jax.lax.ragged_dot`. XLA's other backends expand that operation to N x E x D, so
    there rows are grouped in blocks of one expert each, and blocks with the matrices of their
    experts are one batch of products.

    Args:
      x: [.., D] in the compute dtype.
      ids: [.., k] i32, experts of each token, counted from the first one whose matrices are given.
        Those without matrices add nothing.
      gates: [.., k] f32, their weights.
      gate: [E, D, F] in the compute dtype.
      up: [E, D, F].
      down: [E, F, D].
      kernels: result of `attention.kernels_for` for the device that this is compiled for; None:
        `jax.default_backend`.

    Returns:
      [.., D] in the dtype of x.
    """
    kernels = kernels or jax.default_backend()
    tokens = x.reshape(-1, x.shape[-1])
    ids = ids.reshape(-1, ids.shape[-1])
    gates = gates.reshape(ids.shape)
    matrices = (gate, up, down)
    if len(tokens) <= FEW_TOKENS[kernels]:
        out = _apply_all(tokens, ids, gates, matrices)
    elif kernels == "tpu":
        out = _apply_in_rows(tokens, ids, gates, matrices, _sort_rows(ids, len(gate)))
    else:
        out = _apply_in_rows(tokens, ids, gates, matrices, _block_rows(ids, len(gate)))
    return out.astype(x.dtype).reshape(x.shape)


class _Rows(NamedTuple):
    """An arrangement of pairs in rows, in which the pairs of an expert are neighbours.

    Attributes:
      pair: [P] i32, pair n k + j of each row; R for a row without one.
      row: [N, k] i32, row of each pair; P for an expert whose matrices are not here.
      multiply: function (rows [P, I], kernels [E, I, O]) -> [P, O].
    """

    pair: jax.Array
    row: jax.Array
    multiply: Callable[[jax.Array, jax.Array], jax.Array]


def _apply_in_rows(
    x: jax.Array, ids: jax.Array, gates: jax.Array, matrices: tuple[jax.Array, ...], rows: _Rows
) -> jax.Array:
    """Computes the experts of arranged pairs: [N, D] f32."""
    gate, up, down = matrices
    token = rows.pair // ids.shape[1]  # N for a row without a pair
    y = _take_rows(x, token, rows.row)
    y = jax.nn.silu(rows.multiply(y, gate)) * rows.multiply(y, up)
    y = rows.multiply(y, down)
    y = _take_rows(y, rows.row.reshape(-1), rows.pair[:, None]).reshape(*ids.shape, -1)
    return jnp.sum(y.astype(jnp.float32) * gates[..., None], axis=1)


def _apply_all(
    x: jax.Array, ids: jax.Array, gates: jax.Array, matrices: tuple[jax.Array, ...]
) -> jax.Array:
    """Computes all experts of a few tokens: [N, D] f32."""
    gate, up, down = matrices
    experts = jnp.arange(len(gate))
    # [E, N], 0 where a token does not go through an expert.
    weights = jnp.sum(jnp.where(ids == experts[:, None, None], gates, 0.0), axis=-1)
    shared = jnp.broadcast_to(x, (len(gate), *x.shape))
    y = jax.nn.silu(jnp.einsum("end,edf->enf", shared, gate))
    y = y * jnp.einsum("end,edf->enf", shared, up)
    y = (y * weights[..., None]).astype(x.dtype)
    return jnp.einsum("enf,efd->nd", y, down, preferred_element_type=jnp.float32)


def _sort_pairs(ids: jax.Array, count: int) -> tuple[jax.Array, ...]:
    """Sorts pairs by expert.

    Returns:
      The expert of each pair [R], `count` for one that is not here; the pairs in the order of
      experts [R]; their places in this order [R]; and the number of pairs of each expert [E].
    """
    pairs = ids.reshape(-1)
    pairs = jnp.where((pairs >= 0) & (pairs < count), pairs, count)
    order = jnp.argsort(pairs, stable=True)
    # Compared and summed: a histogram would be a scatter, which accelerators are slow at.
    sizes = jnp.sum(pairs[:, None] == jnp.arange(count), axis=0, dtype=jnp.int32)
    return pairs, order, jnp.argsort(order), sizes


def _sort_rows(ids: jax.Array, count: int) -> _Rows:
    """Arranges pairs without gaps, for `jax.lax.ragged_dot`."""
    pairs, order, place, sizes = _sort_pairs(ids, count)
    # Rows behind the last group belong to experts that are not here: their products have no meaning
    # and are not read.
    is_here = jnp.arange(len(order)) < jnp.sum(sizes)
    return _Rows(
        pair=jnp.where(is_here, order, ids.size),
        row=jnp.where(pairs < count, place, ids.size).reshape(ids.shape),
        multiply=lambda rows, kernels: _multiply_groups(rows, kernels, sizes),
    )


@jax.custom_vjp
def _multiply_groups(rows: jax.Array, kernels: jax.Array, sizes: jax.Array) -> jax.Array:
    """Multiplies groups of rows [P, I] by a kernel each, [E, I, O], to [P, O].

    `sizes` [E] are the numbers of rows of the groups.
    """
    return jax.lax.ragged_dot(rows, kernels, sizes)


def _multiply_groups_forward(
    rows: jax.Array, kernels: jax.Array, sizes: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _multiply_groups(rows, kernels, sizes), (rows, kernels, sizes)


def _multiply_groups_backward(
    inputs: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    rows, kernels, sizes = inputs
    _, transpose = jax.vjp(lambda rows: jax.lax.ragged_dot(rows, kernels, sizes), rows)
    kernel_gradient = jax.lax.platform_dependent(
        rows, gradient, sizes, tpu=multiply_transposed, default=_expand_transposed
    )
    return *transpose(gradient), kernel_gradient.astype(kernels.dtype), None


_multiply_groups.defvjp(_multiply_groups_forward, _multiply_groups_backward)


def multiply_transposed(
    rows: jax.Array, gradient: jax.Array, sizes: jax.Array, *, interpret: bool = False
) -> jax.Array:
    """Multiplies transposed groups of rows by others, with the Pallas kernel of jax on TPUs.

    XLA on TPUs multiplies all rows for every group here.

    Args:
      rows: [P, I].
      gradient: [P, O].
      sizes: [E] i32, numbers of rows of groups.
      interpret: whether the kernel runs without a TPU.

    Returns:
      [E, I, O] in the dtype of the rows.
    """
    # Here, because every other platform would wait for the import of Pallas.
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    smallest, largest = TILE_ROWS
    half = len(rows) // (2 * len(sizes))
    tile = min(largest, max(smallest, _largest_power(half)))
    padding = ((0, -len(rows) % tile), (0, 0))
    return tgmm(
        jnp.pad(rows, padding).T,
        jnp.pad(gradient, padding),
        sizes,
        preferred_element_type=rows.dtype,
        tiling=(tile, min(TILE_SIDE, rows.shape[1]), min(TILE_SIDE, gradient.shape[1])),
        interpret=interpret,
    )


def _expand_transposed(rows: jax.Array, gradient: jax.Array, sizes: jax.Array) -> jax.Array:
    kernels = jnp.zeros((len(sizes), rows.shape[1], gradient.shape[1]), rows.dtype)
    _, transpose = jax.vjp(lambda kernels: jax.lax.ragged_dot(rows, kernels, sizes), kernels)
    return transpose(gradient)[0]


def _largest_power(limit: int) -> int:
    """Returns the largest power of two up to a limit, and 0 for a limit of 0."""
    return 2 ** (limit.bit_length() - 1) if limit else 0


def _block_rows(ids: jax.Array, count: int) -> _Rows:
    """Arranges pairs in blocks of one expert each; the last block of an expert has gaps."""
    # Half of an expert's average rows: gaps and copies of matrices then stay in proportion to the
    # rows and to the experts.
    size = max(SMALLEST_BLOCK, _largest_power(ids.size // (2 * count)))
    blocks = ids.size // size + min(count, ids.size)
    pairs, order, place, sizes = _sort_pairs(ids, count)
    group_start = jnp.cumsum(sizes) - sizes
    expert_blocks = -(-sizes // size)
    block_end = jnp.cumsum(expert_blocks)
    row_start = (block_end - expert_blocks) * size
    # The last expert, for blocks behind the last one.
    expert = jnp.sum(jnp.arange(blocks)[:, None] >= block_end, axis=1, dtype=jnp.int32)
    expert = jnp.minimum(expert, count - 1)

    row_expert = jnp.repeat(expert, size, total_repeat_length=blocks * size)
    offset = jnp.arange(blocks * size) - row_start[row_expert]
    is_pair = offset < sizes[row_expert]
    index = jnp.where(is_pair, group_start[row_expert] + offset, 0)
    row = row_start[pairs] + place - group_start[pairs]

    return _Rows(
        pair=jnp.where(is_pair, order[index], ids.size),
        row=jnp.where(pairs < count, row, blocks * size).reshape(ids.shape),
        multiply=lambda rows, kernels: _multiply_blocks(rows, kernels, expert),
    )


@jax.custom_vjp
def _multiply_blocks(rows: jax.Array, kernels: jax.Array, expert: jax.Array) -> jax.Array:
    """Multiplies blocks of rows [P, I] by a kernel of [E, I, O] each, to [P, O].

    `expert` [B] has the kernels of the blocks, ascending.
    """
    y = jnp.einsum("bri,bio->bro", _rows_by_block(rows, expert), kernels[expert])
    return y.reshape(len(rows), -1)


def _multiply_blocks_forward(
    rows: jax.Array, kernels: jax.Array, expert: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _multiply_blocks(rows, kernels, expert), (rows, kernels, expert)


def _multiply_blocks_backward(
    inputs: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    rows, kernels, expert = inputs
    gradient = _rows_by_block(gradient, expert)
    row_gradient = jnp.einsum("bro,bio->bri", gradient, kernels[expert])
    # In float32, because an expert has many blocks; the transpose of `kernels[expert]` would add
    # them up in bfloat16.
    products = jnp.einsum(
        "bri,bro->bio",
        _rows_by_block(rows, expert),
        gradient,
        preferred_element_type=jnp.float32,
    )
    kernel_gradient = jax.ops.segment_sum(
        products, expert, len(kernels), indices_are_sorted=True
    ).astype(kernels.dtype)
    return row_gradient.reshape(rows.shape), kernel_gradient, None


_multiply_blocks.defvjp(_multiply_blocks_forward, _multiply_blocks_backward)


def _rows_by_block(rows: jax.Array, expert: jax.Array) -> jax.Array:
    return rows.reshape(len(expert), -1, rows.shape[-1])


@jax.custom_vjp
def _take_rows(x: jax.Array, index: jax.Array, users: jax.Array) -> jax.Array:
    """Takes rows of x by their index.

    x is [A, D], the index [B]; the index A gives 0. `users` [A, U] has the places in the result
    where each row of x went, B for none. The gradient then reads rows too: the transpose of a plain
    indexing would scatter them.
    """
    return jnp.take(x, index, axis=0, mode="fill", fill_value=0)


def _take_rows_forward(
    x: jax.Array, index: jax.Array, users: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _take_rows(x, index, users), users


def _take_rows_backward(users: jax.Array, gradient: jax.Array) -> tuple[jax.Array, None, None]:
    rows = jnp.take(gradient, users, axis=0, mode="fill", fill_value=0)
    return jnp.sum(rows, axis=1, dtype=jnp.float32).astype(gradient.dtype), None, None


_take_rows.defvjp(_take_rows_forward, _take_rows_backward)


def sum_over_devices(apply: Experts, axis: str) -> Experts:
    """Makes a function for experts split over an axis.

    The axis is one of the mesh. The result is called where the axis is manual. Each device has all
    tokens and its own experts, and their sums are added up: the exchange of a dense block whose
    inner width is split.
    """

    def apply_local(
        x: jax.Array, ids: jax.Array, gates: jax.Array, *kernels: jax.Array
    ) -> jax.Array:
        first = jax.lax.axis_index(axis) * len(kernels[0])
        return jax.lax.psum(apply(x, ids - first, gates, *kernels), axis)

    return apply_local
