"""Rotary position embeddings (RoFormer, arXiv 2104.09864, equation 34), in float32."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

Rotary = tuple[jax.Array, jax.Array]  # cosines and sines


@dataclass(frozen=True)
class RopeScaling:
    """Context extension of Llama 3.1, "llama3" in config.json.

    It lowers the low frequencies.

    Attributes:
      factor: divisor of slow frequencies, > 0.
      low_freq_factor: full turns in the original context; rotations with fewer are slowed in full.
      high_freq_factor: full turns above which rotations stay; larger than `low_freq_factor`.
      original_max_position_embeddings: original context, tokens.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor={self.high_freq_factor} must be above {self.low_freq_factor}"
            )

    def scale_frequencies(self, frequencies: jax.Array) -> jax.Array:
        """Returns the scaled frequencies [K/2] f32, radians a token."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        # 1 from `high_freq_factor` on (unchanged), 0 below `low_freq_factor` (divided by `factor`),
        # linear between the two.
        unscaled_share = (turns - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        unscaled_share = jnp.clip(unscaled_share, 0.0, 1.0)
        return frequencies * (unscaled_share + (1 - unscaled_share) / self.factor)


def rotary_angles(
    positions: jax.Array,
    head_dim: int,
    theta: float,
    scaling: RopeScaling | None = None,
    axes: Sequence[int] = (),
) -> Rotary:
    """Cosines and sines of the rotation angles.

    With `axes`, positions have a first axis, and frequency i turns with positions[axes[i]] (M-RoPE,
    arXiv 2409.12191, section 2.1).

    Args:
      positions: [...] i32.
      head_dim: K, even.
      theta: base of the frequencies.
      scaling: context extension; None for none.
      axes: axis of positions of each frequency, K/2 numbers; () for positions of one axis.

    Returns:
      Two arrays [..., 1, K/2] f32.
    """
    exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    frequencies = theta**-exponents
    if scaling is not None:
        frequencies = scaling.scale_frequencies(frequencies)
    # The axis of length 1 is broadcast over heads. bfloat16 could not tell positions above 256
    # apart; float32 is exact up to 2^24.
    places = positions[..., None, None].astype(jnp.float32)
    if axes:
        # [..., 1, K/2]: each frequency takes its own axis of positions.
        places = jnp.moveaxis(jnp.take(places[..., 0], jnp.array(axes), axis=0), 0, -1)
    angles = places * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, angles: Rotary) -> jax.Array:
    """Rotates x [..., heads, K].

    The result has the dtype of x. Entry i pairs with entry i + K/2, as in Hugging Face models.
    """
    cos, sin = angles
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)
