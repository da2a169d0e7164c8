"""Which positions see which: segments of rows, and the numbers that all attention kernels share."""

import jax
import jax.numpy as jnp

BLOCK = 256  # largest number of cache entries that are read together
# Finite: a row with nothing to attend to stays free of NaN.
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)
# Name of the result, and of a kernel's softmax statistics, for `jax.checkpoint`.
MIXED = "attention"


def segment_limit(length: int) -> int:
    """Returns the largest number of segments in a packed row of `length` tokens."""
    # cuDNN's backward pass works on, and keeps in float32, a whole row of queries for every segment
    # that there could be. With one for every 32 tokens this took 22% of an update on an H200, and
    # 26 GB.
    return max(32, length // 512)


def causal_segment_mask(segment_ids: jax.Array, window: int = 0) -> jax.Array:
    """Returns [B, T, T] bool: whether a position (second axis) may see a position (third axis).

    With a window it sees so many, itself included.
    """
    length = segment_ids.shape[-1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    if segment_ids.ndim == 3:
        # Padding, which ends nowhere, sees itself: no softmax is over an empty set.
        descends = jnp.arange(length)[:, None] < segment_ids[:, 1, None]
        return (descends & causal) | jnp.eye(length, dtype=bool)
    # Padding, segment 0, may see padding: no softmax is over an empty set.
    same_segment = segment_ids[:, :, None] == segment_ids[:, None, :]
    if window:
        causal &= ~jnp.tril(jnp.ones((length, length), bool), -window)
    return same_segment & causal


def visible_entries(
    entries: jax.Array, positions: jax.Array, length: int, window: int
) -> jax.Array:
    """Returns which entries [n] of a cache the tokens at `positions` [...] see, [..., n] bool."""
    if not window:
        return entries <= positions[..., None]
    # In a window's cache newer tokens lie where the oldest ones were: these are out of the window.
    age = (positions[..., None] - entries) % length
    return (age < window) & (age <= positions[..., None])
