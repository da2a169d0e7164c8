"""The head of a critic: values of tokens."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from gigpo_jax.models.layer import Params


class ValueHead(nnx.Module):
    """A head of `count` values a token, x [..., D] -> [..., count] f32, all 0 at the start.

    With one value the result is [...].
    """

    def __init__(self, width: int, count: int, *, dtype: Any) -> None:
        self.kernel = nnx.Param(jnp.zeros((width, count), dtype))
        self.bias = nnx.Param(jnp.zeros((count,), dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.kernel[...].astype(jnp.float32)
        bias = self.bias[...].astype(jnp.float32)
        x = x.astype(jnp.float32)
        # Sums, not a product of matrices: matrix units compute with fewer digits by default.
        if kernel.shape[1] == 1:
            return jnp.sum(x * kernel[:, 0], axis=-1) + bias
        values = [jnp.sum(x * column, axis=-1) for column in kernel.T]
        return jnp.stack(values, axis=-1) + bias


def predict_values(params: Params, hidden: jax.Array) -> jax.Array:
    """Applies the value head `params["value_head"]` to hidden states, [..., D] -> [...] f32.

    With several values a token the result is [..., values].
    """
    width, count = params["value_head"]["kernel"].shape
    # Only the structure of the module is made, no array.
    head = nnx.eval_shape(lambda: ValueHead(width, count, dtype=jnp.float32))
    return nnx.merge(nnx.graphdef(head), params["value_head"])(hidden)
