"""How an engine computes with bfloat16 on CPUs.

XLA reads and writes parts of such arrays by way of float32 copies of all of them, is slow at products whose sums it
rounds itself, and computes cheap things again wherever they are read.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

BITS = jnp.uint16  # an array of this dtype holds bfloat16 numbers, and XLA takes parts of it without copies

FEW_ROWS = 256  # of a product


def bits(x: jax.Array) -> jax.Array:
    """A bfloat16 array as its bits."""
    return jax.lax.bitcast_convert_type(x, BITS)


def numbers(x: jax.Array) -> jax.Array:
    """The bfloat16 array that `bits` took."""
    return jax.lax.bitcast_convert_type(x, jnp.bfloat16)


def rows(table: jax.Array, index: jax.Array) -> jax.Array:
    """Rows of a bfloat16 table [V, D] by their index [...]: [..., D]."""
    # Without the barrier XLA takes the bits of the whole table out of a loop, as a copy.
    table, index = jax.lax.optimization_barrier((table, index))
    return numbers(bits(table)[index])


def once(x: jax.Array) -> jax.Array:
    """x [..., N] f32, unchanged.

    XLA computes cosines again in every fusion that reads them, also behind a barrier, but never a product of matrices:
    hence one with the identity.
    """
    return x @ jnp.eye(x.shape[-1])


def apart(layers: Any) -> tuple[Any, ...]:
    """Stacked layers as a tree for each, whose kernels are [O, I]: products read such weights where they are."""

    def taken(index: int, path: Any, leaf: jax.Array) -> jax.Array:
        return leaf[index].T if path[-1].key == "kernel" else leaf[index]

    count = len(jax.tree.leaves(layers)[0])
    return tuple(jax.tree_util.tree_map_with_path(functools.partial(taken, index), layers) for index in range(count))


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x [N, I] times a kernel [O, I]: [N, O] f32."""
    if len(x) > FEW_ROWS:
        return _product(x, kernel)
    # XLA rearranges the second operand: here the smaller one. The barriers keep it from swapping the operands back, and
    # from transposing inside what reads the result (1.4 of 29 ms for scoring and drawing 32 tokens at 0.5B).
    return jax.lax.optimization_barrier(jax.lax.optimization_barrier(_product(kernel, x)).T)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
