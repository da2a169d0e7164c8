"""Tokens follow the distribution they are said to follow, against an oracle that sorts in
float64.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.engines.jax.sample import (
    _draw_tokens,
    _invert_cumulative,
    process_logits,
    sample_tokens,
    token_keys,
)

CHI2_999 = {
    5: 20.5,
    12: 32.9,
    299: 380.0,
}  # 0.999 quantiles, from tables; beyond 100 by Wilson-Hilferty, rounded up


def oracle(logits: np.ndarray, temperature: float, top_p: float, top_k: int) -> np.ndarray:
    """The distribution [V], by sorting."""
    scores = logits.astype(np.float64) / temperature
    order = np.argsort(-scores, kind="stable")
    if top_k > 0:
        order = order[:top_k]
    weights = np.exp(scores[order] - scores[order[0]])
    weights /= weights.sum()
    kept = (
        int(np.searchsorted(np.cumsum(weights), top_p * (1 - 1e-9)) + 1)
        if top_p < 1
        else len(order)
    )
    probs = np.zeros(len(logits))
    probs[order[:kept]] = weights[:kept] / weights[:kept].sum()
    return probs


def draw(logits, temperature, top_p, top_k, count, seed=0):
    keys = jax.random.key_data(jax.random.split(jax.random.key(seed), count))
    rows = lambda x, dtype: jnp.full((count,), x, dtype)  # noqa: E731
    draws = jax.jit(sample_tokens)(
        jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (count, len(logits))),
        token_keys(keys, rows(0, jnp.int32)),
        rows(temperature, jnp.float32),
        (rows(top_p, jnp.float32), rows(top_k, jnp.int32)),
    )
    return tuple(map(np.asarray, draws))


@pytest.mark.parametrize(
    ("vocabulary", "temperature", "top_p", "top_k"),
    [
        pytest.param(13, 1.0, 1.0, -1, marks=pytest.mark.slow),
        (13, 0.4, 1.0, -1),
        (13, 1.0, 0.8, -1),
        (13, 1.0, 1.0, 6),
        (13, 1.7, 0.9, 9),
        (300, 1.0, 1.0, -1),
    ],
)
def test_frequencies_and_logprobs_are_those_of_the_distribution(
    vocabulary, temperature, top_p, top_k
):
    logits = np.random.default_rng(vocabulary).normal(size=vocabulary) * 1.3
    probs = oracle(logits, temperature, top_p, top_k)
    count = 20_000
    tokens, logprobs, entropies = draw(logits, temperature, top_p, top_k, count)
    np.testing.assert_allclose(logprobs, np.log(probs[tokens]), atol=2e-6)
    entropy = -np.sum(probs[probs > 0] * np.log(probs[probs > 0]))
    np.testing.assert_allclose(entropies, entropy, atol=5e-6)
    seen = np.bincount(tokens, minlength=vocabulary)
    assert not seen[probs == 0].any()
    kept = probs > 0
    chi2 = np.sum((seen - count * probs)[kept] ** 2 / (count * probs[kept]))
    freedom = int(kept.sum()) - 1
    assert chi2 < next(limit for degrees, limit in CHI2_999.items() if degrees >= freedom)


@pytest.mark.slow
def test_a_large_flat_vocabulary_is_drawn_evenly():
    # Blocks of 128 tokens, the last one not full; every token as likely as any other but one, which
    # is likelier.
    vocabulary = 4000
    count = 20_000
    logits = np.zeros(vocabulary)
    logits[3999] = np.log(401)  # 401 of 4400
    tokens, *_ = draw(logits, 1.0, 1.0, -1, count)
    likely = np.sum(tokens == 3999)
    assert abs(likely - count * 401 / 4400) < 4 * np.sqrt(count * 401 / 4400)
    tenths = np.bincount(tokens[tokens != 3999] // 400, minlength=10)
    assert np.abs(tenths - tenths.mean()).max() < 4 * np.sqrt(tenths.mean())
    within = np.bincount(tokens[tokens < 3968] % 128, minlength=128)
    assert np.abs(within - within.mean()).max() < 5 * np.sqrt(within.mean())


def test_a_row_depends_on_nothing_but_itself():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(6, 50)), jnp.float32)
    keys = jnp.asarray(rng.integers(0, 2**32, (6, 2)), jnp.uint32)
    temperature = jnp.array([1.0, 0.0, 0.5, 1.0, 2.0, 1.0])
    top_p = jnp.array([1.0, 0.5, 1.0, 0.7, 1.0, 0.9])
    top_k = jnp.array([0, 0, 5, -1, 1, 0])
    run = jax.jit(sample_tokens)
    together = run(logits, token_keys(keys, jnp.arange(6)), temperature, (top_p, top_k))
    for row in range(6):
        pick = slice(row, row + 1)
        alone = run(
            logits[pick],
            token_keys(keys[pick], jnp.arange(6)[pick]),
            temperature[pick],
            (top_p[pick], top_k[pick]),
        )
        assert alone[0][0] == together[0][row]
        np.testing.assert_allclose(alone[1][0], together[1][row], atol=1e-6)


def test_programs_without_cuts_give_what_rows_that_keep_all_tokens_get():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(6, 300)) * 9, jnp.float32)
    keys = jax.random.key_data(jax.random.split(jax.random.key(0), 6))
    arguments = logits, token_keys(keys, jnp.arange(6)), jnp.array([1.0, 0.0, 0.5, 1.0, 2.0, 1.0])
    cuts = jnp.ones(6), jnp.array([0, -1, 0, 0, 0, 0])
    run = jax.jit(sample_tokens)
    for plain, cut in zip(run(*arguments), run(*arguments, cuts), strict=True):
        np.testing.assert_array_equal(plain, cut)


def test_temperature_zero_is_greedy_and_reports_the_plain_distribution():
    logits = np.random.default_rng(3).normal(size=20)
    tokens, logprobs, entropies = draw(logits, 0.0, 0.3, 2, 4)
    assert (tokens == np.argmax(logits)).all()
    probs = oracle(logits, 1.0, 1.0, -1)
    np.testing.assert_allclose(logprobs, np.max(np.log(probs)), atol=1e-6)
    np.testing.assert_allclose(entropies, -np.sum(probs * np.log(probs)), atol=5e-6)


@pytest.mark.parametrize("likeliest", [[299], [127, 128], [0, 200, 299]])
def test_temperature_zero_takes_the_first_of_the_likeliest_of_any_block(likeliest: list[int]):
    logits = np.random.default_rng(3).normal(size=300)
    logits[likeliest] = 9.0
    assert (draw(logits, 0.0, 1.0, -1, 4)[0] == likeliest[0]).all()


def test_ties_with_the_last_kept_token_are_kept():
    logits = jnp.array([[2.0, 1.0, 1.0, 1.0, 0.0]])
    one = jnp.ones((1,))
    scores, _ = process_logits(logits, one, (one, jnp.array([2])))
    assert np.isfinite(np.asarray(scores)).tolist() == [[True, True, True, True, False]]
    scores, _ = process_logits(
        logits, one, (one * 0.5, jnp.array([0]))
    )  # 0.43 alone, so the tied three come in
    assert np.isfinite(np.asarray(scores)).tolist() == [[True, True, True, True, False]]


def test_a_tiny_top_p_keeps_the_likeliest():
    logits = jnp.array([[0.0, -0.0, 3.0, -1e30]])
    tokens, logprobs, entropies = draw(np.asarray(logits[0]), 1.0, 1e-6, -1, 8)
    assert (tokens == 2).all()
    np.testing.assert_allclose(logprobs, 0.0, atol=1e-7)
    np.testing.assert_allclose(entropies, 0.0, atol=1e-7)


def test_each_token_of_a_request_has_its_own_key():
    key = jnp.array([[1, 2]], jnp.uint32)
    uniform = [
        float(jax.random.uniform(token_keys(key, jnp.array([count]))[0])) for count in range(50)
    ]
    assert len(set(uniform)) == 50


def around(numbers: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1) and their float32 neighbours."""
    numbers = np.asarray(numbers, np.float32)
    near = np.concatenate(
        [numbers, np.nextafter(numbers, np.float32(0)), np.nextafter(numbers, np.float32(1))]
    )
    return near[(near >= 0) & (near < 1)]


@pytest.mark.slow
def test_an_index_of_weight_zero_is_never_drawn_where_the_float32_sum_rises_there():
    """XLA sums in blocks: the cumulative sum of 1,187 numbers may rise at a 0, and may fall at the
    end.
    """
    rng = np.random.default_rng(0)
    cumulate = jax.jit(lambda x: jnp.cumsum(x, axis=-1))
    invert = jax.jit(_invert_cumulative)
    weights = np.where(rng.random((20, 1187)) < 0.03, rng.random((20, 1187)), 0).astype(np.float32)
    share = np.float32(0.8631006)
    for row, sums in zip(weights, np.asarray(cumulate(weights))):
        known = np.maximum.accumulate(np.where(row > 0, sums, 0))
        uniform = np.resize(around(known / sums[-1]), 3600)
        drawn = np.asarray(invert(np.broadcast_to(row, (3600, 1187)), uniform))
        assert (row[drawn] > 0).all()
        # The same at one given number: the last weight is chosen so that this share of the total is
        # a known sum.
        late = np.resize(known[known > 0.9 * sums[-1]], 100)
        changed = np.tile(row, (100, 1))
        changed[:, -1] = np.maximum(row[-1] + late / share - sums[-1], 0)
        drawn = np.asarray(invert(changed, np.full(100, share)))
        assert (changed[np.arange(100), drawn] > 0).all()


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 50), (0.9, -1), (0.7, 400)])
def test_only_kept_tokens_are_drawn_from_a_large_vocabulary(top_p: float, top_k: int):
    vocabulary = 151_936
    rows = 32
    logits = np.random.default_rng(1).normal(size=vocabulary).astype(np.float32) * 5
    one = jnp.ones((1,))
    scores = jax.jit(process_logits)(logits[None], one, (one * top_p, jnp.array([top_k])))[0]
    weights = np.exp(np.asarray(scores[0]))
    assert 0 < np.sum(weights > 0) < 20_000
    blocks = np.asarray(jax.jit(lambda x: jnp.cumsum(x))(weights.reshape(-1, 128).sum(-1)))
    # The numbers at which one block ends and the next begins, and as many others.
    hard = around(np.unique(blocks) / blocks[-1])
    uniform = np.random.default_rng(0).random((2 * len(hard) // rows * rows, 2), np.float32)
    uniform[: len(hard), 0] = hard
    draw_rows = jax.jit(
        lambda uniform: _draw_tokens(jnp.broadcast_to(scores, (rows, vocabulary)), uniform)
    )
    drawn = np.concatenate([draw_rows(part) for part in np.split(uniform, len(uniform) // rows)])
    assert (weights[drawn] > 0).all()
    assert len(np.unique(drawn)) > 10
