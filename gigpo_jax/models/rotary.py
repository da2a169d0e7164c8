"""Rotary position embeddings (RoFormer, arXiv 2104.09864, equation 34), in float32."""

import jax
import jax.numpy as jnp

Rotary = tuple[jax.Array, jax.Array]


def rotary(positions: jax.Array, head_dim: int, theta: float) -> Rotary:
    """Cosines and sines [..., 1, K/2] f32 of the angles at positions [...] i32, for heads of even width K."""
    half = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    angles = positions[..., None, None].astype(jnp.float32) * theta**-half
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, by: Rotary) -> jax.Array:
    """Rotates x [..., heads, K]: entry i pairs with entry i + K/2, as in Qwen2's heads; keeps the dtype of x."""
    cos, sin = by
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
