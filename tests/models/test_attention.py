"""Kernels for accelerators and attention over the cache compute what plain attention does; what
cuDNN is given.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.models.attention import attention, cached_attention
from gigpo_jax.models.attention_kernels import segment_extents, segment_limit, splash_attention
from gigpo_jax.models.chunk_attention import chunk_attention
from gigpo_jax.models.decode_kernel import decode_attention, fits

# Segments cross the kernel's tiles of 128, and none is longer than 100; the row ends with padding.
SEGMENTS = np.repeat([1, 2, 3, 4, 0], [60, 100, 30, 50, 16])[None].astype(np.int32)
# A tree of 170 tokens: 60, and behind them 40 that end there and 30 with two ends of 20. Then a
# text of 30. The padding is longer than a tile.
TREES = np.stack(
    [
        np.repeat([1, 2, 0], [170, 30, 184]),
        np.repeat([170, 100, 170, 150, 170, 200, 0], [60, 40, 30, 20, 20, 30, 184]),
    ]
)[None].astype(np.int32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("segment_ids", "max_segment", "window"),
    [(SEGMENTS, None, 0), (SEGMENTS, 100, 0), (TREES, None, 0), (SEGMENTS, 40, 40)],
)
def test_splash_attention_and_its_gradient(
    segment_ids: np.ndarray, max_segment: int | None, window: int
) -> None:
    rng = np.random.default_rng(0)
    query, key, value, weights = (
        jnp.asarray(rng.normal(size=(1, segment_ids.shape[-1], n, 64)), jnp.float32)
        for n in (2, 1, 1, 2)
    )

    def run(kernel, **options):
        def weighted(query, key, value):
            return jnp.sum(kernel(query, key, value, segment_ids, **options) * weights)

        return jax.value_and_grad(weighted, argnums=(0, 1, 2))(query, key, value)

    result = run(splash_attention, max_segment=max_segment, interpret=True)
    expected = run(attention, window=window)
    for actual, desired in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(actual, desired, rtol=1e-5, atol=2e-5)


def test_segments_as_cudnn_takes_them() -> None:
    """A row with padding, which is the last segment, a full row, and one without any segment."""
    rows = np.array([[1, 1, 1, 2, 0, 0], [1, 2, 2, 2, 2, 3], [0] * 6], np.int32)
    lengths, offsets = segment_extents(rows)
    slots = segment_limit(6) + 1
    assert (lengths.shape, offsets.shape) == ((3, slots), (3, slots + 1))
    for row, expected in enumerate([[(3, 0), (1, 3), (2, 4)], [(1, 0), (4, 1), (1, 5)], [(6, 0)]]):
        assert [
            (int(n), int(positions)) for n, positions in zip(lengths[row], offsets[row]) if n >= 0
        ] == expected
    assert (offsets[:, -1] == -1).all()


def test_attention_over_the_cache_is_plain_attention_and_no_bit_depends_on_other_rows() -> None:
    rng = np.random.default_rng(1)
    capacity = 600  # not a multiple of the blocks
    query, key, value = (
        jnp.asarray(rng.normal(size=(1, capacity, n, 16)), jnp.float32) for n in (4, 2, 2)
    )
    expected = attention(query, key, value, np.ones((1, capacity), np.int32))[0]
    store = [
        jnp.swapaxes(jnp.stack([x[0] * 0 + 5, x[0]])[None], 2, 3) for x in (key, value)
    ]  # in slot 1 of 2
    chunk = jax.jit(
        lambda slots, positions: chunk_attention(
            query[0][positions % capacity], *store, 0, slots, positions
        )
    )
    for start in (0, 250, 569):
        alone = jnp.stack(
            [jnp.arange(start, start + 31), jnp.full(31, capacity)]
        )  # the second row is empty
        result = chunk(jnp.array([1, 2]), alone)[0]
        np.testing.assert_allclose(result, expected[start : start + 31], rtol=1e-5, atol=1e-5)
        neighbours = alone.at[1].set(jnp.arange(569, 600))
        assert chunk(jnp.array([1, 0]), neighbours)[0].tobytes() == result.tobytes()
    decode = jax.jit(
        lambda positions: cached_attention(query[0][positions % capacity], *store, 0, positions)
    )
    for position in (capacity, 3, 599):
        result = decode(jnp.array([position, 300]))
        np.testing.assert_allclose(result[1], expected[300], rtol=1e-5, atol=1e-5)
        assert result[1].tobytes() == decode(jnp.array([capacity, 300]))[1].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slots", "groups", "shared", "capacity", "head_dim"),
    [(3, 2, 6, 200, 16), (4, 1, 7, 64, 32), (2, 4, 1, 600, 64), (70, 8, 2, 130, 16)],
)
def test_the_decode_kernel_is_attention_over_the_cache(
    slots: int, groups: int, shared: int, capacity: int, head_dim: int
) -> None:
    """Caches in one part and in many, slots with one token, with all, and without a new one."""
    rng = np.random.default_rng(0)
    store_shape = (2, slots, groups, capacity, head_dim)
    query, key, value = (
        jnp.asarray(rng.normal(size=shape), jnp.bfloat16)
        for shape in ((slots, groups * shared, head_dim), store_shape, store_shape)
    )
    assert fits(query, key)
    assert not fits(query.astype(jnp.float32), key.astype(jnp.float32))
    assert not fits(query[..., :12], key[..., :12])

    def kernel(query, key, value, layer, positions):
        tokens = (query[:, None], key, value, layer, None, positions[:, None])
        return decode_attention(*tokens, interpret=jax.default_backend() == "cpu")[:, 0]

    positions = jnp.asarray(rng.integers(0, capacity, slots))
    positions = positions.at[0].set(0).at[1].set(capacity - 1).at[-1].set(capacity + 3)
    # Entries behind a slot's position are not read, whatever they are.
    behind = jnp.arange(capacity) > jnp.where(positions < capacity, positions, 0)[:, None]
    poisoned = [jnp.where(behind[None, :, None, :, None], jnp.nan, array) for array in (key, value)]
    for layer in (0, 1):
        result = jax.jit(kernel)(query, *poisoned, layer, positions)
        expected = cached_attention(
            *(array.astype(jnp.float32) for array in (query, key, value)), layer, positions
        )
        errors = np.abs(np.asarray(result, np.float32) - expected)
        assert errors[positions < capacity].max() < 0.02
        assert np.isfinite(np.asarray(result, np.float32)).all()
    others = jax.jit(kernel)(query, key, value, 1, positions.at[1].set(5))
    assert others[0].tobytes() == result[0].tobytes()


@pytest.mark.parametrize(("length", "capacity"), [(32, 200), (5, 700)])
def test_the_decode_kernel_is_attention_of_chunks(length: int, capacity: int) -> None:
    """Tiles of queries and parts of a cache; two rows are of one slot, one of none."""
    rng = np.random.default_rng(0)
    slots = jnp.array([2, 0, 2, 3])
    starts = jnp.array([0, capacity - length, length, 0])
    shapes = ((4, length, 12, 16), (2, 3, 2, capacity, 16), (2, 3, 2, capacity, 16))
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes]
    positions = (starts[:, None] + jnp.arange(length)).at[2, -3:].set(capacity)
    interpret = jax.default_backend() == "cpu"
    result = decode_attention(*arrays, 1, slots, positions, interpret=interpret)
    wide = [array.astype(jnp.float32) for array in arrays]
    expected = chunk_attention(*wide, 1, slots, positions)
    errors = np.abs(np.asarray(result, np.float32) - expected)
    assert errors[positions < capacity].max() < 0.02
    assert np.isfinite(np.asarray(result, np.float32)).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    ("length", "longest"),
    [(1, 1), (31, 20), (31, 10), (100, 7), (192, 192), (301, 200), (400, 200), (601, 193)],
)
def test_attention_by_bands_and_quarters_and_its_gradient(
    length: int, longest: int, dtype: jnp.dtype
) -> None:
    rng = np.random.default_rng(0)
    query, key, value, weights = (
        jnp.asarray(rng.normal(size=(2, length, n, 8)), jnp.float32) for n in (4, 2, 2, 4)
    )
    segment_ids = np.stack(
        [np.arange(length) // longest + 1, (np.arange(length) + longest - 1) // longest + 1]
    )
    segment_ids[1, length - length // 3 :] = 0
    weights *= segment_ids[..., None, None] > 0
    segment_mask = (segment_ids[:, :, None] == segment_ids[:, None])[:, None]

    def ours(*inputs: jax.Array) -> jax.Array:
        inputs = tuple(x.astype(dtype) for x in inputs)
        return attention(*inputs, segment_ids, max_segment=longest).astype(jnp.float32) * weights

    def plain(*inputs: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(*inputs, mask=segment_mask, is_causal=True) * weights

    def results(run: Callable[..., jax.Array]) -> list[jax.Array]:
        out, back = jax.vjp(run, query, key, value)
        return [out, *back(out)]

    tolerance = 1e-5 if dtype == jnp.float32 else 0.05
    for result, expected in zip(
        jax.jit(results, static_argnums=0)(ours), results(plain), strict=True
    ):
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("window", [7, 40, 130])
def test_windows_are_a_mask(window: int) -> None:
    """In bands, in quarters and over the cache, which may have the last tokens alone."""
    length = 600
    rng = np.random.default_rng(2)
    query, key, value = (
        jnp.asarray(rng.normal(size=(1, length, n, 16)), jnp.float32) for n in (4, 2, 2)
    )
    segments = np.repeat([1, 2, 3, 0], [250, 300, 30, 20])[None].astype(np.int32)

    def masked(segment_ids: np.ndarray) -> jax.Array:
        age = np.arange(length)[:, None] - np.arange(length)
        mask = (age >= 0) & (age < window) & (segment_ids[0] == segment_ids[0][:, None])
        scores = jnp.einsum("tgrk,sgk->grts", query[0].reshape(length, 2, 2, 16), key[0]) / 4
        probs = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
        return jnp.einsum("grts,sgk->tgrk", probs, value[0]).reshape(length, 4, 16)

    expected = masked(segments)
    for max_segment in (None, 300):
        mixed = attention(query, key, value, segments, max_segment=max_segment, window=window)
        np.testing.assert_allclose(mixed[0], expected, atol=2e-5)
    short = [x[:, :150] for x in (query, key, value)]
    mixed = attention(*short, segments[:, :150], window=window)
    np.testing.assert_allclose(mixed[0], expected[:150], atol=2e-5)

    expected = masked(np.ones((1, length), np.int32))
    store = [jnp.swapaxes(x[None], 2, 3) for x in (key, value)]
    positions = np.arange(length)[None]
    slots = np.zeros(1, np.int32)
    mixed = chunk_attention(query, *store, 0, slots, positions, window)
    np.testing.assert_allclose(mixed[0], expected, atol=2e-5)
    # Caches of the last tokens alone.
    places = np.arange(length)
    rings = []
    for size in (window + 49, window):
        newest = places[-size:]
        rings.append([x[:, :, :, newest[np.argsort(newest % size)]] for x in store])
    mixed = chunk_attention(query[:, 550:], *rings[0], 0, slots, positions[:, 550:], window)
    np.testing.assert_allclose(mixed[0], expected[550:], atol=2e-5)
    part = [x[:, :, :, :200] for x in store]
    for stored, position in ((part, 150), (store, 599), (rings[1], 599)):
        place = np.array([position])
        mixed = cached_attention(query[:, position], *stored, 0, place, None, window)
        np.testing.assert_allclose(mixed[0], expected[position], atol=2e-5)


def test_updates_on_gpus_keep_no_scores() -> None:
    """Of XLA's kernel, which takes the heads that cuDNN does not."""
    arrays = [jax.ShapeDtypeStruct((1, 256, heads, 256), jnp.bfloat16) for heads in (2, 1, 1)]
    segments = jnp.ones((1, 256), jnp.int32)

    def residuals(kernels: str) -> list[tuple[int, ...]]:
        attend = functools.partial(attention, segment_ids=segments, kernels=kernels)
        _, pullback = jax.eval_shape(functools.partial(jax.vjp, attend), *arrays)
        return [leaf.shape for leaf in jax.tree.leaves(pullback)]

    def scores(shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return [shape for shape in shapes if len(shape) == 5 and shape[-1] > 1]

    assert not scores(residuals("gpu"))
    assert scores(residuals("cpu"))
