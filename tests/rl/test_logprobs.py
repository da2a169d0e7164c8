import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.rl.logprobs import PaddedEmbedding, token_logprobs

N = 37
D = 12
V = 101


def inputs(seed: int = 0, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(seed), 3)
    hidden = 2.0 * jax.random.normal(keys[0], (N, D))
    embedding = jax.random.normal(keys[1], (V, D))
    targets = jax.random.randint(keys[2], (N,), 0, V)
    return hidden.astype(dtype), embedding, targets


def plain(hidden, embedding, targets, temperature):
    logits = hidden.astype(jnp.float32) @ embedding.T / temperature
    logprobs = jax.nn.log_softmax(logits)
    entropy = -jnp.sum(jnp.exp(logprobs) * logprobs, axis=1)
    return jnp.take_along_axis(logprobs, targets[:, None], axis=1)[:, 0], entropy


@pytest.mark.parametrize("chunk", [1, 8, 37, 64])
@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_values_and_gradients_equal_the_plain_formula(chunk, temperature):
    hidden, embedding, targets = inputs()
    weights = jax.random.normal(jax.random.key(9), (2, N))

    def scalar(function):
        def loss(hidden, embedding):
            logprob, entropy = function(hidden, embedding)
            return jnp.sum(weights[0] * logprob + weights[1] * entropy) / N, (logprob, entropy)

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))

    (_, got), got_grad = scalar(
        lambda h, e: token_logprobs(h, e, targets, chunk=chunk, temperature=temperature)
    )(hidden, embedding)
    (_, want), want_grad = scalar(lambda h, e: plain(h, e, targets, temperature))(hidden, embedding)
    for a, b in zip(jax.tree.leaves((got, got_grad)), jax.tree.leaves((want, want_grad))):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_known_distribution():
    # Logits (0, ln 3) / 1 give probabilities 1/4 and 3/4; at temperature 1/2 they are 1/10 and
    # 9/10.
    hidden = jnp.ones((2, 1))
    embedding = jnp.asarray([[0.0], [np.log(3.0)]])
    targets = jnp.asarray([0, 1])
    logprob, entropy = token_logprobs(hidden, embedding, targets, chunk=2)
    np.testing.assert_allclose(logprob, np.log([0.25, 0.75]), rtol=1e-6)
    np.testing.assert_allclose(entropy, [-0.25 * np.log(0.25) - 0.75 * np.log(0.75)] * 2, rtol=1e-6)
    logprob, _ = token_logprobs(hidden, embedding, targets, chunk=1, temperature=0.5)
    np.testing.assert_allclose(logprob, np.log([0.1, 0.9]), rtol=1e-6)


def test_logits_of_bfloat16_hidden_states_are_float32():
    hidden, embedding, targets = inputs(dtype=jnp.bfloat16)
    logprob, entropy = token_logprobs(hidden, embedding, targets, chunk=8)
    rounded = embedding.astype(jnp.bfloat16).astype(jnp.float32)
    want_logprob, want_entropy = plain(hidden, rounded, targets, 1.0)
    assert logprob.dtype == entropy.dtype == jnp.float32
    np.testing.assert_allclose(logprob, want_logprob, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(entropy, want_entropy, rtol=1e-4, atol=1e-5)


def test_large_logits_do_not_overflow():
    hidden, embedding, targets = inputs()
    logprob, entropy = token_logprobs(300.0 * hidden, embedding, targets, chunk=8)
    assert np.all(np.isfinite(logprob))
    assert np.all(np.isfinite(entropy))
    assert np.max(logprob) <= 0.0


def sizes(jaxpr) -> list[int]:
    """Element counts of all values a jaxpr computes, inner jaxprs included."""
    found = []
    for equation in jaxpr.eqns:
        found += [int(np.prod(v.aval.shape)) for v in equation.outvars]
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                found += sizes(inner)
    return found


def test_no_array_of_tokens_by_vocabulary_forward_or_backward():
    rows = 640
    vocabulary = 1000
    chunk = 32
    args = (jnp.zeros((rows, 16)), jnp.zeros((vocabulary, 16)))
    targets = jnp.zeros(rows, jnp.int32)

    def chunked(hidden, embedding):
        return sum(jnp.sum(x) for x in token_logprobs(hidden, embedding, targets, chunk=chunk))

    def whole(hidden, embedding):
        return sum(jnp.sum(x) for x in plain(hidden, embedding, targets, 1.0))

    gradient = jax.grad(chunked, argnums=(0, 1))
    assert max(sizes(jax.make_jaxpr(gradient)(*args).jaxpr)) == chunk * vocabulary
    assert max(sizes(jax.make_jaxpr(jax.grad(whole))(*args).jaxpr)) >= rows * vocabulary
    temporary = jax.jit(gradient).lower(*args).compile().memory_analysis().temp_size_in_bytes
    assert temporary < rows * vocabulary * 4 / 2


def test_no_tokens_have_no_scores():
    hidden, embedding, targets = inputs()
    logprob, entropy = token_logprobs(hidden[:0], embedding, targets[:0], chunk=8)
    assert logprob.shape == entropy.shape == (0,)


def test_rows_without_a_token_have_probability_0():
    hidden, embedding, _ = inputs()
    count = 64
    targets = jax.random.randint(jax.random.key(5), (N,), 0, count)

    def sums(function):
        def total(hidden, embedding):
            logprob, entropy = function(hidden, embedding)
            return jnp.sum(logprob * logprob) + jnp.sum(entropy), (logprob, entropy)

        return jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(hidden, embedding)

    got = sums(lambda h, e: token_logprobs(h, PaddedEmbedding(e, count), targets, chunk=8))
    want = sums(lambda h, e: plain(h, e[:count], targets, 1.0))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
