"""Linear layers, with or without a low-rank pair, norms and activations."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {  # names in config.json
    "silu": jax.nn.silu,
    "gelu_pytorch_tanh": functools.partial(jax.nn.gelu, approximate=True),
}
INITIALIZER_RANGE = 0.02  # initializer_range in config.json of the published models


class Linear(nnx.Module):
    """A linear layer, with a low-rank pair if adapted.

    x @ kernel (+ x @ lora_a @ lora_b) (+ bias), in the dtype of x.
    Shapes: x [..., I], kernel [I, O], lora_a [I, R], lora_b [R, O], bias [O].
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool,
        dtype: Any,
        rngs: nnx.Rngs,
        adapted: bool = False,
        for_cpu: bool = False,
    ) -> None:
        """Draws the kernel, which with `for_cpu` is as from `on_cpu.transpose_kernels` later."""
        self._for_cpu = for_cpu
        self.kernel = nnx.Param(draw_normal(rngs, (inputs, outputs), dtype))
        if bias:
            self.bias = nnx.Param(jnp.zeros((outputs,), dtype))
        if adapted:  # placeholders: `lora.init_adapter` makes the arrays, of any rank
            self.lora_a = nnx.Param(jnp.zeros((inputs, 1), dtype))
            self.lora_b = nnx.Param(jnp.zeros((1, outputs), dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        # One product over all tokens: with more axes the kernel's gradient is slow on XLA's CPU
        # backend.
        flat = x.reshape(-1, x.shape[-1])
        kernel = self.kernel[...].astype(x.dtype)
        if self._for_cpu:
            from gigpo_jax.models.on_cpu import multiply_rows

            y = multiply_rows(flat, kernel).astype(x.dtype)
        else:
            y = flat @ kernel
        if hasattr(self, "lora_a"):
            # x A first: the product A B would be as large as the kernel.
            y = y + (flat @ self.lora_a[...].astype(x.dtype)) @ self.lora_b[...].astype(x.dtype)
        if hasattr(self, "bias"):
            y = y + self.bias[...].astype(x.dtype)
        return y.reshape(*x.shape[:-1], y.shape[-1])


def adapted_linears(layers: Any) -> tuple[str, ...]:
    """Names the linear layers with a low-rank pair, in stacked or split layers."""
    # All layers have the same pairs.
    linears = layers[0] if isinstance(layers, tuple) else layers
    return tuple(name for name, leaves in linears.items() if "lora_a" in leaves)


class RMSNorm(nnx.Module):
    """RMS normalization, x [..., D] / rms(x) * (offset + scale), with statistics in float32."""

    def __init__(self, width: int, *, eps: float, dtype: Any, offset: float = 0.0) -> None:
        self.eps = eps
        self.offset = offset
        self.scale = nnx.Param(jnp.full((width,), 1.0 - offset, dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        # bfloat16 has 8 significant bits, too few for a mean over the width.
        x32 = x.astype(jnp.float32)
        x32 = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.eps)
        if self.offset:
            return (x32 * (self.offset + self.scale[...].astype(jnp.float32))).astype(x.dtype)
        # The scale multiplies after rounding, as in the published code.
        return x32.astype(x.dtype) * self.scale[...].astype(x.dtype)


def draw_normal(rngs: nnx.Rngs, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Draws a matrix from a normal distribution with standard deviation `INITIALIZER_RANGE`."""
    # Drawn in float32, so that a model is the same up to rounding in every dtype.
    return (INITIALIZER_RANGE * jax.random.normal(rngs.params(), shape, jnp.float32)).astype(dtype)
