"""Rotary position embeddings (RoFormer, arXiv 2104.09864, equation 34), in float32."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

Rotary = tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class RopeScaling:
    """How Llama 3.1 extends its context: slow rotations become `factor` times slower ("llama3" in config.json).

    Attributes:
      factor: > 0.
      low_freq_factor: full turns in the original context; rotations with fewer are slowed in full.
      high_freq_factor: rotations with more turns stay as they are; larger than `low_freq_factor`.
      original_max_position_embeddings: the original context, tokens.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(f"high_freq_factor={self.high_freq_factor} must be above {self.low_freq_factor}")

    def apply(self, frequencies: jax.Array) -> jax.Array:
        """The scaled frequencies [K/2] f32, radians a token."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = jnp.clip(kept, 0.0, 1.0)
        return frequencies * (kept + (1 - kept) / self.factor)


def rotary(
    positions: jax.Array,
    head_dim: int,
    theta: float,
    scaling: RopeScaling | None = None,
    sections: Sequence[int] = (),
) -> Rotary:
    """Cosines and sines [..., 1, K/2] f32 of the angles at positions [...] i32, for heads of even width K.

    With `sections`, whose sum is K/2, positions have a first axis: the first sections[0] frequencies turn with
    positions[0], the next ones with positions[1], and so on (M-RoPE, arXiv 2409.12191, section 2.1).
    """
    half = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    frequencies = theta**-half if scaling is None else scaling.apply(theta**-half)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    if sections:
        parts = jnp.split(angles, list(itertools.accumulate(sections[:-1])), axis=-1)
        angles = jnp.concatenate([part[axis] for axis, part in enumerate(parts)], axis=-1)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, by: Rotary) -> jax.Array:
    """Rotates x [..., heads, K]: entry i pairs with entry i + K/2, as in Hugging Face models; keeps the dtype of x."""
    cos, sin = by
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
