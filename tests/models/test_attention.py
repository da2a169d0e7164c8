"""Kernels for accelerators: splash attention, interpreted, computes what plain attention does; what cuDNN is given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.models.attention import attention, segment_extents, segment_limit, splash

# Segments cross the kernel's tiles of 128, and none is longer than 100; the row ends with padding.
SEGMENTS = np.repeat([1, 2, 3, 4, 0], [60, 100, 30, 50, 16])[None].astype(np.int32)


@pytest.mark.parametrize("max_segment", [None, 100])
def test_splash_attention_and_its_gradient(max_segment: int | None) -> None:
    rng = np.random.default_rng(0)
    query, key, value, weights = (jnp.asarray(rng.normal(size=(1, 256, n, 64)), jnp.float32) for n in (2, 1, 1, 2))

    def run(kernel, **options):
        def weighted(query, key, value):
            return jnp.sum(kernel(query, key, value, SEGMENTS, **options) * weights)

        return jax.value_and_grad(weighted, argnums=(0, 1, 2))(query, key, value)

    found, expected = run(splash, max_segment=max_segment, interpret=True), run(attention)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=2e-5)


def test_segments_as_cudnn_takes_them() -> None:
    """A row with padding, which is the last segment, a full row, and one without any segment."""
    rows = np.array([[1, 1, 1, 2, 0, 0], [1, 2, 2, 2, 2, 3], [0] * 6], np.int32)
    lengths, offsets = segment_extents(rows)
    slots = segment_limit(6) + 1
    assert (lengths.shape, offsets.shape) == ((3, slots), (3, slots + 1))
    for row, expected in enumerate([[(3, 0), (1, 3), (2, 4)], [(1, 0), (4, 1), (1, 5)], [(6, 0)]]):
        assert [(int(n), int(at)) for n, at in zip(lengths[row], offsets[row]) if n >= 0] == expected
    assert (offsets[:, -1] == -1).all()
