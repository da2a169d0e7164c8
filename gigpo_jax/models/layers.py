"""Linear layers, with or without a low-rank pair, and norms."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from gigpo_jax.models import on_cpu

INITIALIZER_RANGE = 0.02  # as config.json of the published models has it


class Linear(nnx.Module):
    """x [..., I] -> x @ kernel [I, O] (+ x @ lora_a [I, R] @ lora_b [R, O]) (+ bias [O]), in the dtype of x."""

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
        """Draws the kernel; `for_cpu` if it is one of `on_cpu.apart` when the layer is called."""
        self._for_cpu = for_cpu
        self.kernel = nnx.Param(normal(rngs, (inputs, outputs), dtype))
        if bias:
            self.bias = nnx.Param(jnp.zeros((outputs,), dtype))
        if adapted:  # placeholders: `lora.init` makes the arrays, of any rank
            self.lora_a = nnx.Param(jnp.zeros((inputs, 1), dtype))
            self.lora_b = nnx.Param(jnp.zeros((1, outputs), dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        # One product over all tokens: with more axes the kernel's gradient is slow on XLA's CPU backend.
        flat = x.reshape(-1, x.shape[-1])
        kernel = self.kernel[...].astype(x.dtype)
        y = on_cpu.product(flat, kernel).astype(x.dtype) if self._for_cpu else flat @ kernel
        if hasattr(self, "lora_a"):
            y = y + (flat @ self.lora_a[...].astype(x.dtype)) @ self.lora_b[...].astype(x.dtype)
        y = y + self.bias[...].astype(x.dtype) if hasattr(self, "bias") else y
        return y.reshape(*x.shape[:-1], y.shape[-1])


def adapted_linears(layers: Any) -> tuple[str, ...]:
    """The names of the linear layers with a low-rank pair, in stacked layers or in those of `on_cpu.apart`."""
    linears = layers[0] if isinstance(layers, tuple) else layers
    return tuple(name for name, leaves in linears.items() if "lora_a" in leaves)


class RMSNorm(nnx.Module):
    """x [..., D] -> x / rms(x) * scale; the statistics are float32."""

    def __init__(self, width: int, *, eps: float, dtype: Any) -> None:
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,), dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        x32 = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.eps)
        return x32.astype(x.dtype) * self.scale[...].astype(x.dtype)


class ValueHead(nnx.Module):
    """x [..., D] -> [...] f32, one value a token; it starts at 0 everywhere."""

    def __init__(self, width: int, *, dtype: Any) -> None:
        self.kernel = nnx.Param(jnp.zeros((width, 1), dtype))
        self.bias = nnx.Param(jnp.zeros((1,), dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel, bias = (leaf[...].astype(jnp.float32) for leaf in (self.kernel, self.bias))
        # A sum, not a product of matrices: matrix units compute with fewer digits by default.
        return jnp.sum(x.astype(jnp.float32) * kernel[:, 0], axis=-1) + bias


def normal(rngs: nnx.Rngs, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Draws a matrix from a normal distribution of standard deviation `INITIALIZER_RANGE`."""
    return (INITIALIZER_RANGE * jax.random.normal(rngs.params(), shape, jnp.float32)).astype(dtype)
