import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.learner.loss_weights import episode_weights
from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.samples import Sample
from gigpo_jax.rl.kl import k3
from gigpo_jax.rl.losses import LossSettings, LossSums, loss_divisor, policy_loss
from gigpo_jax.rl.train_step import select_microbatch
from gigpo_jax.rl.types import StepBatch
from tests.turns import make_step, make_turn

CLIP = LossSettings(clip_low=0.2, clip_high=0.28)


def tokens(
    behaviour, advantage, weight=None, *, reference=None, proximal=None, response=None
) -> StepBatch:
    """The fields of a microbatch that the loss reads, from lists of shape [C] or [B, C]."""
    arrays = [
        behaviour,
        advantage,
        jnp.ones_like(jnp.asarray(behaviour)) if weight is None else weight,
    ]
    behaviour, advantage, weight = (jnp.atleast_2d(jnp.asarray(x, jnp.float32)) for x in arrays)
    reference, proximal = (
        None if x is None else jnp.atleast_2d(jnp.asarray(x)) for x in (reference, proximal)
    )
    numbers = (
        jnp.ones(weight.shape, jnp.int32)
        if response is None
        else jnp.atleast_2d(jnp.asarray(response)) + 1
    )
    return StepBatch(
        None, None, None, None, numbers, None, behaviour, advantage, weight, 1, reference, proximal
    )


def loss_of(logprob, batch: StepBatch, settings: LossSettings = CLIP, entropy=None) -> LossSums:
    logprob = jnp.atleast_2d(jnp.asarray(logprob))
    return policy_loss(
        logprob, jnp.zeros_like(logprob) if entropy is None else entropy, batch, settings
    )


def one(ratio: float, advantage: float) -> LossSums:
    """The loss of a single token with behaviour log-probability -1."""
    return loss_of([-1.0 + math.log(ratio)], tokens([-1.0], [advantage]))


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
        return loss_of(logprob, tokens([-1.0], [advantage])).loss

    np.testing.assert_allclose(
        jax.grad(loss)(jnp.asarray([-1.0 + math.log(ratio)])), [gradient], rtol=1e-5
    )


def test_clips_of_a_token_are_scaled_by_hand():
    batch = tokens([-1.0] * 4, [2.0, 2.0, -2.0, 0.0], [1, 1, 1, 0])
    logprob = [-1.0 + math.log(ratio) for ratio in (1.5, 1.5, 0.5, 1.0)]
    scaled = loss_of(logprob, replace(batch, clip_scale=jnp.asarray([[0.5, 2.0, 0.5, 0.0]])))
    np.testing.assert_allclose(scaled.loss, -2 * 1.14 - 2 * 1.5 + 2 * 0.9, rtol=1e-5)
    same = loss_of(logprob, replace(batch, clip_scale=jnp.asarray([[1.0, 1.0, 1.0, 0.0]])))
    assert float(same.loss) == float(loss_of(logprob, batch).loss)


def test_k3_by_hand():
    # d = ln 2: 2 - ln 2 - 1; d = -ln 2: 1/2 + ln 2 - 1; d = -8: e^-8 + 8 - 1; the estimate is at
    # most 10.
    policy = jnp.asarray([0.0, 0.0, 0.0, 0.0, -50.0, 0.0, -5.0])
    reference = jnp.asarray([math.log(2), -math.log(2), 0.0, -8.0, 0.0, -500.0, 0.0])
    by_hand = [1 - math.log(2), math.log(2) - 0.5, 0.0, math.exp(-8) + 7, 10.0, 10.0, 10.0]
    np.testing.assert_allclose(k3(policy, reference), by_hand, rtol=1e-5)
    gradient = jax.grad(lambda x: k3(x, reference).sum())(policy)
    np.testing.assert_allclose(
        gradient, [-1.0, 0.5, 0.0, 1 - math.exp(-8), 0.0, 0.0, 0.0], rtol=1e-5
    )


def test_kl_and_entropy_enter_with_their_weights():
    batch = tokens([-1.0, -2.0], [1.0, -1.0], reference=[-1.0 + math.log(2), -2.0])
    settings = replace(CLIP, kl_coef=0.1, entropy_coef=0.01)
    sums = loss_of([-1.0, -2.0], batch, settings, entropy=jnp.asarray([[0.5, 1.5]]))
    kl = 1 - math.log(2)
    np.testing.assert_allclose(sums.loss, -1.0 + 1.0 + 0.1 * kl - 0.01 * 2.0, rtol=1e-5)
    np.testing.assert_allclose([sums.kl, sums.entropy], [kl, 2.0], rtol=1e-6)


def test_truncated_importance_sampling_by_hand():
    # behaviour -2, learner before the update -1, now -1 + ln 1.1: ratio 1.1, importance e, capped
    # at 2.
    logprob = [-1.0 + math.log(1.1)]
    batch = tokens([-2.0], [3.0], proximal=[-1.0])
    np.testing.assert_allclose(loss_of(logprob, batch).loss, -3.3, rtol=1e-5)
    sums = loss_of(logprob, batch, replace(CLIP, correction="truncated", importance_cap=2.0))
    np.testing.assert_allclose(sums.loss, -6.6, rtol=1e-5)
    np.testing.assert_allclose(sums.mismatch, 1.0, rtol=1e-6)
    loss = loss_of(logprob, batch, replace(CLIP, correction="truncated", importance_cap=10.0)).loss
    np.testing.assert_allclose(loss, -3.3 * math.e, rtol=1e-5)


def test_sequence_ratio_is_the_geometric_mean_of_a_response_with_token_gradients():
    log_ratio = jnp.log(jnp.asarray([[1.0, 1.21, 1.1, 7.0]]))
    batch = tokens([-1.0] * 4, [1.0] * 4, [1.0, 1.0, 1.0, 0.0], response=[0, 0, 1, 1])

    def loss(logprob):
        return loss_of(logprob, batch, replace(CLIP, ratio="sequence")).loss

    value, gradient = jax.value_and_grad(loss)(batch.behaviour + log_ratio)
    np.testing.assert_allclose(value, -3.3, rtol=1e-5)  # sqrt(1.21) twice, 1.1 once
    np.testing.assert_allclose(gradient, [[-1.1, -1.1, -1.1, 0.0]], rtol=1e-5)


LENGTHS = ((23, 61), (197,), (40, 3, 90))  # of the responses in three rows


def responses(seed: int) -> tuple[jax.Array, StepBatch, list[tuple[int, slice]]]:
    """Log-probabilities and a batch of responses of unequal length, and where each stands."""
    rng = np.random.default_rng(seed)
    number = np.zeros((3, 200), np.int32)
    where = []
    weight, advantage = np.zeros((2, 3, 200), np.float32)
    for row, lengths in enumerate(LENGTHS):
        at = 0
        for n, length in enumerate(lengths):
            here = slice(at, at + length)
            number[row, here], weight[row, here], advantage[row, here] = n, 1.0, rng.normal()
            where.append((row, here))
            at += length
    old = rng.normal(-1.0, 0.3, number.shape).astype(np.float32)
    logprob = old + rng.normal(0.0, 0.05, number.shape).astype(np.float32)
    return jnp.asarray(logprob), tokens(old, advantage, weight, response=number), where


def gradient_of(settings: LossSettings, logprob: jax.Array, batch: StepBatch) -> np.ndarray:
    total = loss_divisor(batch, settings)
    return np.asarray(
        jax.jit(jax.grad(lambda x: loss_of(x, batch, settings).loss / total))(logprob), np.float64
    )


def test_gspo_has_the_gradient_of_its_paper():
    """In float64: J is the mean over responses of min(s A, clip(s) A), s = exp(mean log-ratio)
    (2507.18071, eq. 5).
    """
    settings = LossSettings(clip_low=3e-3, clip_high=4e-3, ratio="sequence", mean="responses")
    logprob, batch, where = responses(0)
    want = np.zeros(logprob.shape)
    clipped = 0
    for row, here in where:
        new, old, a = (
            np.asarray(x, np.float64)[row, here]
            for x in (logprob, batch.behaviour, batch.advantage)
        )
        ratio = np.exp(np.mean(new - old))
        a = a[0]
        if min(ratio * a, np.clip(ratio, 1 - 3e-3, 1 + 4e-3) * a) == ratio * a:
            want[row, here] = -ratio * a / len(new) / len(where)  # of -J to each log-probability
        else:
            clipped += 1
    assert 0 < clipped < len(where)
    np.testing.assert_allclose(gradient_of(settings, logprob, batch), want, rtol=1e-5, atol=1e-9)


def test_the_loss_is_a_mean_over_responses_of_constant_length():
    """Dr. GRPO (arXiv 2503.20783): a token weighs the same in a response of any length."""
    logprob, batch, where = responses(1)
    settings = LossSettings(
        clip_low=10.0, clip_high=10.0, dual_clip=math.inf, mean="constant", constant=512
    )
    want = np.zeros(logprob.shape)
    for row, here in where:
        new, old, a = (
            np.asarray(x, np.float64)[row, here]
            for x in (logprob, batch.behaviour, batch.advantage)
        )
        want[row, here] = -a * np.exp(new - old) / 512 / len(where)
    np.testing.assert_allclose(gradient_of(settings, logprob, batch), want, rtol=1e-5, atol=1e-9)


def test_the_loss_is_a_mean_over_episodes():
    """In float64: the mean over episodes of the mean over their tokens, whatever steps these belong
    to.
    """
    rng = np.random.default_rng(0)
    steps = []
    advantages = []
    lengths = {0: (3, 9), 1: (1,), 2: (5, 5, 2)}  # response tokens of the steps of three episodes
    for trajectory, responses in lengths.items():
        for number, n in enumerate(responses):
            ids = rng.integers(0, 9, n).astype(np.int32)
            turn = make_turn(response_tokens=ids, logprobs=np.zeros(n, np.float32))
            steps.append(make_step(trajectory, number, turn))
            advantages.append(rng.normal())
    weights = episode_weights(steps, range(len(steps)), longest=30)
    samples = [
        Sample(s.turn.prompt_tokens, s.turn.response_tokens, s.turn.logprobs, advantage, weight)
        for s, advantage, weight in zip(steps, advantages, weights, strict=True)
    ]
    (batch,) = make_minibatches(samples, steps=len(steps), row_length=16, rows=2, rng=rng)
    per_episode = [
        sum(
            a * n
            for a, n, s in zip(advantages, sum(lengths.values(), ()), steps)
            if s.trajectory == e
        )
        / sum(of)
        for e, of in lengths.items()
    ]
    settings = replace(CLIP, mean="episodes", dual_clip=math.inf)
    loss = 0.0
    for m in range(int(batch.microbatches)):
        loss += float(
            loss_of(np.zeros(batch.weight.shape[1:]), select_microbatch(batch, m), settings).loss
        )
    assert loss / float(loss_divisor(batch, settings)) == pytest.approx(
        -np.mean(per_episode), rel=1e-5
    )
    assert float(loss_divisor(batch, settings)) == pytest.approx(3 * 30)


def test_kl_and_entropy_are_averaged_as_the_surrogate_and_reported_as_means_over_tokens():
    batch = tokens(
        [0.0, 0.0, 0.0], [0.0] * 3, reference=[math.log(2), 0.0, 0.0], response=[0, 0, 1]
    )
    settings = replace(CLIP, kl_coef=0.1, entropy_coef=0.01, mean="responses")
    sums = loss_of(jnp.zeros(3), batch, settings, entropy=jnp.asarray([[1.0, 3.0, 5.0]]))
    kl = 1 - math.log(2)
    np.testing.assert_allclose(sums.loss, 0.1 * kl / 2 - 0.01 * (2.0 + 5.0), rtol=1e-5)
    np.testing.assert_allclose([sums.kl, sums.entropy, sums.tokens], [kl, 9.0, 3.0], rtol=1e-6)


def random_tokens(seed: int, shape=(6, 16)) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 6)
    names = ("logprob", "behaviour", "advantage", "reference", "entropy")
    arrays = {name: jax.random.normal(key, shape) for name, key in zip(names, keys)}
    return {**arrays, "weight": jax.random.bernoulli(keys[5], 0.7, shape).astype(jnp.float32)}


ALL = replace(CLIP, kl_coef=0.1, entropy_coef=0.01)


def random_loss(
    arrays: dict[str, jax.Array], rows: slice = slice(None), settings: LossSettings = ALL
) -> LossSums:
    a = {name: x[rows] for name, x in arrays.items()}
    batch = tokens(a["behaviour"], a["advantage"], a["weight"], reference=a["reference"])
    return loss_of(a["logprob"], batch, settings, a["entropy"])


def test_microbatches_add_up_to_the_mean_over_the_whole_minibatch():
    arrays = random_tokens(0)

    def mean_of(parts):
        def loss(logprob):
            sums = LossSums.zero()
            for part in parts:
                sums += random_loss(arrays | {"logprob": logprob}, part)
            return sums.loss / sums.tokens, sums.means()

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays["logprob"])

    whole = mean_of([slice(0, 6)])
    cut = mean_of([slice(0, 1), slice(1, 4), slice(4, 6)])
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(cut)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_equals_a_loop_over_tokens_in_float64():
    batch = {name: np.asarray(x, np.float64).ravel() for name, x in random_tokens(1).items()}
    loss = count = clipped = 0.0
    for n in range(len(batch["weight"])):
        if batch["weight"][n] == 0:
            continue
        ratio = math.exp(batch["logprob"][n] - batch["behaviour"][n])
        a = batch["advantage"][n]
        plain = -a * ratio
        bounded = -a * min(max(ratio, 0.8), 1.28)
        cost = max(plain, bounded)
        if a < 0:
            cost = min(cost, -3.0 * a)
        d = batch["reference"][n] - batch["logprob"][n]
        loss += cost + 0.1 * min(math.exp(d) - d - 1, 10.0) - 0.01 * batch["entropy"][n]
        count += 1
        clipped += bounded > plain
    sums = random_loss(random_tokens(1))
    np.testing.assert_allclose(
        [sums.loss, sums.tokens, sums.clipped], [loss, count, clipped], rtol=1e-5
    )


def test_padding_may_hold_anything():
    arrays = random_tokens(2)
    dirty = {
        k: v if k == "weight" else jnp.where(arrays["weight"] > 0, v, jnp.nan)
        for k, v in arrays.items()
    }

    def run(arrays):
        return jax.value_and_grad(lambda x: random_loss(arrays | {"logprob": x}).loss)(
            arrays["logprob"]
        )

    for a, b in zip(jax.tree.leaves(run(arrays)), jax.tree.leaves(run(dirty))):
        np.testing.assert_array_equal(a, b)


def test_no_tokens_give_zero_and_huge_ratios_stay_finite():
    empty = loss_of(jnp.zeros(3), tokens([0.0] * 3, [0.0] * 3, [0.0] * 3))
    assert float(empty.loss) == float(empty.tokens) == 0.0
    assert all(float(x) == 0.0 for x in empty.means().values())
    batch = tokens([-200.0, -200.0], [1.0, -1.0])
    value, gradient = jax.value_and_grad(lambda x: loss_of(x, batch).loss)(jnp.zeros(2))
    np.testing.assert_allclose(value, -1.28 + 3.0, rtol=1e-5)
    np.testing.assert_array_equal(gradient, [0.0, 0.0])


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_a_response_whose_weights_add_up_to_less_than_1_counts_as_any_other(ratio):
    batch = tokens([0.0] * 3, [1.0, 1.0, 2.0], [0.1, 0.3, 1.0], response=[0, 0, 1])
    settings = LossSettings(clip_low=1.0, clip_high=9.0, ratio=ratio, mean="responses")
    weighted = (
        (math.exp(0.4) + 3 * math.exp(0.8)) / 4
        if ratio == "token"
        else math.exp((0.4 + 3 * 0.8) / 4)
    )
    np.testing.assert_allclose(
        loss_of([0.4, 0.8, 0.0], batch, settings).loss, -weighted - 2.0, rtol=1e-5
    )
