"""bfloat16 on CPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.models import on_cpu


@pytest.mark.parametrize("rows", [1, on_cpu.FEW_ROWS, on_cpu.FEW_ROWS + 1])
def test_a_product_of_few_rows_and_one_of_many_have_float32_sums(rows: int) -> None:
    rng = np.random.default_rng(0)
    x, kernel = (jnp.asarray(rng.normal(size=(count, 200)), jnp.bfloat16) for count in (rows, 40))
    got = jax.jit(on_cpu.product)(x, kernel)
    assert (got.dtype, got.shape) == (jnp.float32, (rows, 40))
    np.testing.assert_allclose(got, x.astype(jnp.float32) @ kernel.astype(jnp.float32).T, atol=1e-4)
