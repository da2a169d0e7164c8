"""The gated delta rule: chunks equal the recurrence, with gradients, and texts do not mix."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.models.delta_rule import convolve, delta_rule, delta_step

LENGTHS = (5, 1, 20, 11)  # the texts of a row, with chunks of 8 tokens; then comes padding
SEGMENTS = np.repeat([1, 2, 3, 4, 0], (*LENGTHS, 3))[None]


def draw_arrays(seed: int = 0) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(seed)
    shape = (1, SEGMENTS.size, 2)
    query, key = rng.normal(size=(2, *shape, 6))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    value = rng.normal(size=(*shape, 3, 5))
    # Rates near 1 and texts with hardly any decay, where errors would add up.
    rate = rng.uniform(0.3, 1, (*shape, 3))
    log_decay = -rng.exponential(0.1, (*shape, 3))
    log_decay[0, 3] = -200.0
    return tuple(jnp.asarray(x, jnp.float32) for x in (query, key, value, rate, log_decay))


def run_recurrence(*arrays: jax.Array) -> jax.Array:
    """Runs each text token by token, [B, T, G, R, V]."""
    pieces = []
    start = 0
    for length in LENGTHS:
        text = [jnp.moveaxis(x[:, start : start + length], 1, 0) for x in arrays]
        state = jnp.zeros((1, 2, 3, 6, 5))

        def step(state: jax.Array, token: Any) -> Any:
            return delta_step(state, *token)[::-1]

        state, read = jax.lax.scan(step, state, text)
        pieces.append(jnp.moveaxis(read, 0, 1))
        start += length
    return jnp.concatenate(pieces, axis=1)


def test_packed_chunks_equal_the_recurrence() -> None:
    arrays = draw_arrays()
    tokens = sum(LENGTHS)
    weights = np.random.default_rng(1).normal(size=(1, tokens, 2, 3, 5))

    def in_chunks(*arrays: jax.Array) -> jax.Array:
        return delta_rule(*arrays, jnp.asarray(SEGMENTS), chunk=8)[0][:, :tokens]

    def gradients(function: Any) -> Any:
        loss = lambda *arrays: jnp.sum(function(*arrays) * weights)  # noqa: E731
        return jax.jit(jax.grad(loss, argnums=range(5)))(*arrays)

    expected = run_recurrence(*arrays)
    result = jax.jit(in_chunks)(*arrays)
    np.testing.assert_allclose(result, expected, atol=1e-5 * np.abs(expected).max())
    for ours, theirs in zip(gradients(in_chunks), gradients(run_recurrence), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


def test_the_recurrence_by_its_formula() -> None:
    query, key, value, rate, log_decay = draw_arrays()
    expected = np.zeros((6, 5))
    group, head = 1, 2
    state = jnp.zeros((1, 2, 3, 6, 5))
    for token in range(LENGTHS[0]):
        k = np.asarray(key[0, token, group], np.float64)
        b, a = float(rate[0, token, group, head]), float(np.exp(log_decay[0, token, group, head]))
        v = np.asarray(value[0, token, group, head], np.float64)
        expected = a * (np.eye(6) - b * np.outer(k, k)) @ expected + b * np.outer(k, v)
        arrays = (x[:, token] for x in (query, key, value, rate, log_decay))
        read, state = delta_step(state, *arrays)
    np.testing.assert_allclose(state[0, group, head], expected, atol=1e-6)
    read_again = np.asarray(query[0, LENGTHS[0] - 1, group]) @ expected
    np.testing.assert_allclose(read[0, group, head], read_again, atol=1e-5)


@pytest.mark.parametrize("length", [1, 13])
def test_states_are_those_behind_the_last_token(length: int) -> None:
    arrays = [x[:, :length] for x in draw_arrays()]
    state = jnp.zeros((1, 2, 3, 6, 5))
    step = jax.jit(delta_step)
    for token in range(length):
        _, state = step(state, *(x[:, token] for x in arrays))
    padded = [jnp.pad(x, [(0, 0), (0, 4), *[(0, 0)] * (x.ndim - 2)], mode="edge") for x in arrays]
    segments = jnp.asarray([[1] * length + [0] * 4])
    _, result = jax.jit(delta_rule, static_argnames="chunk")(*padded, segments, chunk=8)
    np.testing.assert_allclose(result, state, atol=1e-5)


def test_equal_keys_without_decay_keep_their_digits() -> None:
    """The inverse of such a system has numbers from -1 to 1, but its powers are huge."""
    query, key, value, rate, _ = draw_arrays()
    key = jnp.broadcast_to(key[:, :1], key.shape)
    arrays = (query, key, value, jnp.ones_like(rate), jnp.zeros_like(rate))
    result, _ = jax.jit(delta_rule)(*arrays, jnp.ones((1, SEGMENTS.size), jnp.int32))
    # Each value takes the place of the one before it.
    expected = jnp.einsum("btgk,btgk->btg", query, key)[..., None, None] * value
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_convolutions_stay_in_their_text() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, SEGMENTS.size, 3)).astype(np.float32)
    taps = rng.normal(size=(3, 1, 4)).astype(np.float32)
    result = np.asarray(convolve(jnp.asarray(x), jnp.asarray(taps), jnp.asarray(SEGMENTS)))
    start = 0
    for length in LENGTHS:
        for channel in range(3):
            text = x[0, start : start + length, channel]
            expected = np.convolve(text, taps[channel, 0, ::-1])[:length]
            np.testing.assert_allclose(
                result[0, start : start + length, channel], expected, atol=1e-5
            )
        start += length
