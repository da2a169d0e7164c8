"""Rotary position embeddings (RoFormer, arXiv 2104.09864, equation 34), in float32."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from gigpo_jax.models.decoder_config import AttentionKind, DecoderConfig

if TYPE_CHECKING:
    from gigpo_jax.models.rope_scaling import Scaling

Rotary = tuple[jax.Array, jax.Array]  # cosines and sines
Angles = dict[AttentionKind, Rotary]


def rotary_angles(
    positions: jax.Array,
    head_dim: int,
    theta: float,
    scaling: "Scaling | None" = None,
    axes: Sequence[int] = (),
) -> Rotary:
    """Returns cosines and sines [..., 1, K/2] f32 of the rotation of K = `head_dim` numbers.

    With `axes`, K/2 numbers, positions [...] i32 have a first axis, and frequency i turns with
    positions[axes[i]] (M-RoPE, arXiv 2409.12191, section 2.1). `theta` is the base of frequencies.
    """
    exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    frequencies = theta**-exponents
    if scaling is not None:
        frequencies = scaling.scale_frequencies(frequencies, theta)
    # The axis of length 1 is broadcast over heads. bfloat16 could not tell positions above 256
    # apart; float32 is exact up to 2^24.
    places = positions[..., None, None].astype(jnp.float32)
    if axes:
        # [..., 1, K/2]: each frequency takes its own axis of positions.
        places = jnp.moveaxis(jnp.take(places[..., 0], jnp.array(axes), axis=0), 0, -1)
    angles = places * frequencies
    if scaling is None or scaling.amplitude == 1.0:
        return jnp.cos(angles), jnp.sin(angles)
    return scaling.amplitude * jnp.cos(angles), scaling.amplitude * jnp.sin(angles)


def model_angles(config: DecoderConfig, positions: jax.Array, axes: Sequence[int] = ()) -> Angles:
    """Returns `rotary_angles` for heads of the model, for each kind of attention."""
    width = config.rotary_dim or config.head_dim
    angles = {}
    for kind in dict.fromkeys(config.attention_kinds):
        # Without a base: no rotation, cosines of 1 and sines of 0.
        places = positions if kind.theta else jnp.zeros_like(positions)
        angles[kind] = rotary_angles(places, width, kind.theta or 1.0, kind.scaling, axes)
        if config.for_cpu:
            from gigpo_jax.models.on_cpu import compute_once

            angles[kind] = jax.tree.map(compute_once, angles[kind])
    return angles


def rotate(x: jax.Array, angles: Rotary) -> jax.Array:
    """Rotates x [..., heads, K], pairing entry i with entry i + K/2 as Hugging Face models do.

    The result has the dtype of x. Angles of fewer pairs rotate the first entries alone.
    """
    cos, sin = angles
    width = 2 * cos.shape[-1]
    if width < x.shape[-1]:
        return jnp.concatenate([rotate(x[..., :width], angles), x[..., width:]], axis=-1)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)
