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
    result = jax.jit(on_cpu.multiply_rows)(x, kernel)
    assert (result.dtype, result.shape) == (jnp.float32, (rows, 40))
    np.testing.assert_allclose(
        result, x.astype(jnp.float32) @ kernel.astype(jnp.float32).T, atol=1e-4
    )


def test_a_loop_that_reads_rows_copies_no_table() -> None:
    table = jnp.ones((1000, 64), jnp.bfloat16)

    def run(table: jax.Array, index: jax.Array) -> jax.Array:
        def body(_: int, index: jax.Array) -> jax.Array:
            return index + jnp.sum(on_cpu.gather_rows(table, index), axis=-1).astype(jnp.int32)

        return jax.lax.fori_loop(0, 4, body, index)

    compiled = jax.jit(run).lower(table, jnp.arange(3)).compile()
    np.testing.assert_array_equal(compiled(table, jnp.arange(3)), 4 * 64 + np.arange(3))
    assert compiled.memory_analysis().temp_size_in_bytes < table.nbytes


def test_what_several_fusions_read_is_computed_once() -> None:
    def run(angles: jax.Array, kernel: jax.Array) -> jax.Array:
        cos = on_cpu.compute_once(jnp.cos(angles))
        return (kernel * cos @ kernel) * cos

    angles = jnp.linspace(0, 9, 32 * 32).reshape(32, 32)
    kernel = jnp.ones((32, 32))
    np.testing.assert_array_equal(on_cpu.compute_once(angles), angles)
    assert jax.jit(run).lower(angles, kernel).compile().as_text().count(" cosine(") == 1
