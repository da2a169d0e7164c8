"""Splash attention, interpreted on this machine, computes what plain attention does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.models.attention import attention, splash

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
