"""bfloat16 computation of engines on CPUs, in ways that XLA computes fast.

XLA reads and writes slices of bfloat16 arrays through float32 copies of the whole arrays, is slow
at products with rounded sums, and recomputes cheap results wherever they are read.
"""

from typing import Any

import jax
import jax.numpy as jnp

from gigpo_jax.models.cache import BITS
from gigpo_jax.models.linear_names import LINEARS

# Linear layers of `delta_layer.make_mixer`.
DELTA_LINEARS = ("delta_inputs", "delta_gate", "delta_rate", "delta_decay", "delta_out")
FEW_ROWS = 256  # rows of a product


def gather_rows(table: jax.Array, index: jax.Array) -> jax.Array:
    """Takes rows of a bfloat16 table [V, D] by their index [...], to [..., D]."""
    # Without the barrier XLA takes the bits of the whole table out of a loop, as a copy.
    table, index = jax.lax.optimization_barrier((table, index))
    bits = jax.lax.bitcast_convert_type(table, BITS)[index]
    return jax.lax.bitcast_convert_type(bits, jnp.bfloat16)


def compute_once(x: jax.Array) -> jax.Array:
    """Returns x [..., N] f32 unchanged, as a result that XLA computes once."""
    # XLA computes cosines again in every fusion that reads them, also behind a barrier, but never
    # a product of matrices: hence one with the identity.
    return x @ jnp.eye(x.shape[-1])


def transpose_kernels(layer: Any) -> Any:
    """Transposes the kernels of a layer's linear layers to [O, I]: products read them in place."""

    def transpose(path: Any, leaf: jax.Array) -> jax.Array:
        is_linear = path[0].key in (*LINEARS, *DELTA_LINEARS) and path[-1].key == "kernel"
        return leaf.T if is_linear else leaf

    return jax.tree_util.tree_map_with_path(transpose, layer)


def multiply_rows(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Multiplies rows x [N, I] by a kernel [O, I], to [N, O] f32."""
    if len(x) > FEW_ROWS:
        return _contract_last_axes(x, kernel)
    # XLA rearranges the second operand: here the smaller one. The barriers keep it from swapping
    # the operands back, and from transposing inside what reads the result (1.4 of 29 ms for scoring
    # and drawing 32 tokens at 0.5B).
    transposed = jax.lax.optimization_barrier(_contract_last_axes(kernel, x))
    return jax.lax.optimization_barrier(transposed.T)


def _contract_last_axes(a: jax.Array, b: jax.Array) -> jax.Array:
    # float32 results: XLA's CPU backend is slow where it rounds the sums of a product itself.
    return jax.lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
