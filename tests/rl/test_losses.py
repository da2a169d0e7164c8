import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.rl.losses import LossSums, k3, policy_loss

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def one(ratio: float, advantage: float, **kw) -> LossSums:
    """The loss of a single token with behaviour log-probability -1."""
    return policy_loss(
        jnp.asarray([-1.0 + math.log(ratio)]), jnp.asarray([-1.0]), jnp.asarray([advantage]), jnp.ones(1), **CLIP, **kw
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped", "dual"),
    [
        (1.1, 2.0, -2.2, 0, 0),  # inside: -A w
        (1.5, 2.0, -2.56, 1, 0),  # above 1.28: -2 * 1.28
        (0.5, 2.0, -1.0, 0, 0),  # low ratio, positive advantage: not clipped, -2 * 0.5
        (0.5, -2.0, 1.6, 1, 0),  # low ratio, negative advantage: 2 * 0.8
        (1.5, -2.0, 3.0, 0, 0),  # high ratio, negative advantage: not clipped, 2 * 1.5
        (5.0, -2.0, 6.0, 0, 1),  # dual clip: 2 * 3 instead of 2 * 5
        (5.0, 2.0, -2.56, 1, 0),  # the dual clip is for negative advantages alone
    ],
)
def test_surrogate_of_one_token_by_hand(ratio, advantage, loss, clipped, dual):
    sums = one(ratio, advantage)
    np.testing.assert_allclose(sums.loss, loss, rtol=1e-5)
    assert (float(sums.clipped), float(sums.dual_clipped)) == (clipped, dual)
    np.testing.assert_allclose(sums.ratio_max, ratio, rtol=1e-5)
    np.testing.assert_allclose(sums.mismatch, abs(math.log(ratio)), rtol=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient"),
    [(1.1, 2.0, -2.2), (1.5, 2.0, 0.0), (0.5, -2.0, 0.0), (1.5, -2.0, 3.0), (5.0, -2.0, 0.0)],
)
def test_gradient_to_the_log_probability_by_hand(ratio, advantage, gradient):
    def loss(logprob):
        return policy_loss(logprob, -jnp.ones(1), jnp.asarray([advantage]), jnp.ones(1), **CLIP).loss

    np.testing.assert_allclose(jax.grad(loss)(jnp.asarray([-1.0 + math.log(ratio)])), [gradient], rtol=1e-5)


def test_k3_by_hand():
    # d = ln 2: 2 - ln 2 - 1; d = -ln 2: 1/2 + ln 2 - 1; d = -8: e^-8 + 8 - 1; the estimate is at most 10.
    policy = jnp.asarray([0.0, 0.0, 0.0, 0.0, -50.0, 0.0, -5.0])
    reference = jnp.asarray([math.log(2), -math.log(2), 0.0, -8.0, 0.0, -500.0, 0.0])
    by_hand = [1 - math.log(2), math.log(2) - 0.5, 0.0, math.exp(-8) + 7, 10.0, 10.0, 10.0]
    np.testing.assert_allclose(k3(policy, reference), by_hand, rtol=1e-5)
    gradient = jax.grad(lambda x: k3(x, reference).sum())(policy)
    np.testing.assert_allclose(gradient, [-1.0, 0.5, 0.0, 1 - math.exp(-8), 0.0, 0.0, 0.0], rtol=1e-5)


def test_kl_and_entropy_enter_with_their_weights():
    sums = policy_loss(
        jnp.asarray([[-1.0, -2.0]]), jnp.asarray([[-1.0, -2.0]]), jnp.asarray([[1.0, -1.0]]), jnp.ones((1, 2)), **CLIP,
        reference=jnp.asarray([[-1.0 + math.log(2), -2.0]]), kl_coef=0.1, entropy=jnp.asarray([[0.5, 1.5]]),
        entropy_coef=0.01,
    )  # fmt: skip
    kl = 1 - math.log(2)
    np.testing.assert_allclose(sums.loss, -1.0 + 1.0 + 0.1 * kl - 0.01 * 2.0, rtol=1e-5)
    np.testing.assert_allclose([sums.kl, sums.entropy, sums.policy_loss], [kl, 2.0, 0.0], rtol=1e-6, atol=1e-7)


def test_truncated_importance_sampling_by_hand():
    # behaviour -2, learner before the update -1, now -1 + ln 1.1: ratio 1.1, importance e, capped at 2.
    arrays = (jnp.asarray([-1.0 + math.log(1.1)]), jnp.asarray([-2.0]), jnp.asarray([3.0]), jnp.ones(1))
    proximal = jnp.asarray([-1.0])
    np.testing.assert_allclose(policy_loss(*arrays, **CLIP, proximal=proximal).loss, -3.3, rtol=1e-5)
    sums = policy_loss(*arrays, **CLIP, proximal=proximal, tis_cap=2.0)
    np.testing.assert_allclose(sums.loss, -6.6, rtol=1e-5)
    np.testing.assert_allclose(sums.mismatch, 1.0, rtol=1e-6)
    np.testing.assert_allclose(
        policy_loss(*arrays, **CLIP, proximal=proximal, tis_cap=10.0).loss, -3.3 * math.e, rtol=1e-5
    )
    with pytest.raises(ValueError, match="proximal"):
        policy_loss(*arrays, **CLIP, tis_cap=2.0)


def test_sequence_ratio_is_the_geometric_mean_of_a_response_with_token_gradients():
    log_ratio = jnp.log(jnp.asarray([[1.0, 1.21, 1.1, 7.0]]))
    behaviour, advantage = jnp.full((1, 4), -1.0), jnp.asarray([[1.0, 1.0, 1.0, 1.0]])
    weight, sequence = jnp.asarray([[1.0, 1.0, 1.0, 0.0]]), jnp.asarray([[0, 0, 1, 1]])

    def loss(logprob):
        return policy_loss(logprob, behaviour, advantage, weight, **CLIP, sequence=sequence).loss

    value, gradient = jax.value_and_grad(loss)(behaviour + log_ratio)
    np.testing.assert_allclose(value, -3.3, rtol=1e-5)  # sqrt(1.21) twice, 1.1 once
    np.testing.assert_allclose(gradient, [[-1.1, -1.1, -1.1, 0.0]], rtol=1e-5)


def random_tokens(seed: int, shape=(6, 16)) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 6)
    names = ("logprob", "behaviour", "advantage", "reference", "entropy")
    arrays = {name: jax.random.normal(key, shape) for name, key in zip(names, keys)}
    return {**arrays, "weight": jax.random.bernoulli(keys[5], 0.7, shape).astype(jnp.float32)}


def test_microbatches_add_up_to_the_mean_over_the_whole_minibatch():
    batch = random_tokens(0)
    coefficients = {**CLIP, "kl_coef": 0.1, "entropy_coef": 0.01}

    def mean_of(parts):
        def loss(logprob):
            sums = LossSums.zero()
            for part in parts:
                sums += policy_loss(
                    **{**{k: v[part] for k, v in batch.items()}, "logprob": logprob[part]}, **coefficients
                )
            return sums.loss / sums.tokens, sums.means()

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(batch["logprob"])

    whole, cut = mean_of([slice(0, 6)]), mean_of([slice(0, 1), slice(1, 4), slice(4, 6)])
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(cut)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_equals_a_loop_over_tokens_in_float64():
    batch = {name: np.asarray(x, np.float64).ravel() for name, x in random_tokens(1).items()}
    loss = tokens = clipped = 0.0
    for n in range(len(batch["weight"])):
        if batch["weight"][n] == 0:
            continue
        ratio = math.exp(batch["logprob"][n] - batch["behaviour"][n])
        a = batch["advantage"][n]
        plain, bounded = -a * ratio, -a * min(max(ratio, 0.8), 1.28)
        cost = max(plain, bounded)
        if a < 0:
            cost = min(cost, -3.0 * a)
        d = batch["reference"][n] - batch["logprob"][n]
        loss += cost + 0.1 * min(math.exp(d) - d - 1, 10.0) - 0.01 * batch["entropy"][n]
        tokens += 1
        clipped += bounded > plain
    sums = policy_loss(**random_tokens(1), **CLIP, kl_coef=0.1, entropy_coef=0.01)
    np.testing.assert_allclose([sums.loss, sums.tokens, sums.clipped], [loss, tokens, clipped], rtol=1e-5)


def test_padding_may_hold_anything():
    batch = random_tokens(2)
    dirty = {k: v if k == "weight" else jnp.where(batch["weight"] > 0, v, jnp.nan) for k, v in batch.items()}

    def run(arrays):
        rest = {k: v for k, v in arrays.items() if k != "logprob"}
        return jax.value_and_grad(lambda x: policy_loss(x, **rest, **CLIP, kl_coef=0.1).loss)(arrays["logprob"])

    for a, b in zip(jax.tree.leaves(run(batch)), jax.tree.leaves(run(dirty))):
        np.testing.assert_array_equal(a, b)


def test_no_tokens_give_zero_and_huge_ratios_stay_finite():
    empty = policy_loss(*(jnp.zeros((1, 3)),) * 4, **CLIP)
    assert float(empty.loss) == float(empty.tokens) == 0.0
    assert all(float(x) == 0.0 for x in empty.means().values())
    arrays = (jnp.zeros(2), jnp.full(2, -200.0), jnp.asarray([1.0, -1.0]), jnp.ones(2))
    value, gradient = jax.value_and_grad(lambda x: policy_loss(x, *arrays[1:], **CLIP).loss)(arrays[0])
    np.testing.assert_allclose(value, -1.28 + 3.0, rtol=1e-5)
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


def test_shapes_that_differ_are_named():
    with pytest.raises(ValueError, match="advantage"):
        policy_loss(jnp.zeros(3), jnp.zeros(3), jnp.zeros(2), jnp.ones(3), **CLIP)
