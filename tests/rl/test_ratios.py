"""Ratios and corrections against their formulas in float64; gradients against differences of
these.
"""

import functools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.rl.batch_logprobs import make_logprobs
from gigpo_jax.rl.losses import LossSettings, LossSums, loss_divisor, policy_loss
from gigpo_jax.rl.optimizer import make_optimizer
from gigpo_jax.rl.response_ratios import response_numbers
from gigpo_jax.rl.train_step import init_state
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.update import make_update
from tests.rl.test_losses import responses, tokens
from tests.rl.test_update_settings import forward, make_batch, params

Where = list[tuple[int, slice]]
NARROW = LossSettings(0.02, 0.03, math.inf, ratio="hoelder", mean="responses")
WIDE = {"clip_low": 0.99, "clip_high": 1e6, "dual_clip": math.inf}


@functools.cache
def program(settings: LossSettings):
    def loss(logprob: jax.Array, batch: StepBatch, power: jax.Array) -> tuple[jax.Array, LossSums]:
        own = replace(settings, power=lambda _: power)
        sums = policy_loss(logprob, jnp.zeros_like(logprob), batch, own)
        return sums.loss / loss_divisor(batch, settings), sums

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def run(
    settings: LossSettings, logprob, batch: StepBatch, power: float = 0.0
) -> tuple[float, np.ndarray, LossSums]:
    """The mean loss, its gradient, and the sums."""
    logprob = jnp.atleast_2d(jnp.asarray(logprob, jnp.float32))
    (value, sums), gradient = program(settings)(logprob, batch, jnp.float32(power))
    return float(value), np.asarray(gradient, np.float64), sums


def mean_ratio(ratios: np.ndarray, power: float) -> float:
    """The Hölder mean, as it is defined."""
    return float(
        np.exp(np.log(ratios).mean()) if power == 0 else (ratios**power).mean() ** (1 / power)
    )


def objective(
    logprob: np.ndarray, batch: StepBatch, where: Where, settings: LossSettings, power: float
) -> float:
    """The papers' objectives in float64, negated: the mean over responses of what one costs, all
    tokens with one A.
    """
    total = 0.0
    for row, here in where:
        ratios = np.exp(logprob[row, here] - np.asarray(batch.behaviour, np.float64)[row, here])
        a = float(batch.advantage[row, here][0])
        low = 1 - settings.clip_low
        high = 1 + settings.clip_high
        if settings.ratio == "hoelder_tokens":
            total -= a * mean_ratio(
                np.minimum(ratios, high) if a > 0 else np.maximum(ratios, low), power
            )
        else:
            one = (
                float(np.prod(ratios)) if settings.ratio == "product" else mean_ratio(ratios, power)
            )
            total -= min(a * one, a * np.clip(one, low, high))
    return total / len(where)


def differences(logprob: np.ndarray, batch: StepBatch, where: Where, *arguments) -> np.ndarray:
    """The gradient of `objective` by central differences."""
    out = np.zeros(logprob.shape)
    batch = jax.tree.map(np.asarray, batch)
    for at in np.ndindex(logprob.shape):
        step = np.zeros(logprob.shape)
        step[at] = 1e-6
        out[at] = (
            np.diff([objective(logprob + x, batch, where, *arguments) for x in (-step, step)])[0]
            / 2e-6
        )
    return out


@pytest.mark.parametrize(
    ("ratio", "powers", "clips"),
    [
        ("hoelder", (2.0, 1.0, 0.01, 0.0, -0.01, -1.0, -2.0), (0.02, 0.03)),
        ("hoelder_tokens", (1.0, 0.0, -1.0), (0.051, 0.062)),
        ("product", (0.0,), (0.2, 0.3)),
    ],
)
def test_values_and_gradients_of_response_ratios_are_those_of_their_formulas(ratio, powers, clips):
    logprob, batch, where = responses(3)
    settings = LossSettings(*clips, math.inf, ratio=ratio, mean="responses")
    exact = np.asarray(logprob, np.float64)
    for power in powers:
        value, gradient, sums = run(settings, logprob, batch, power)
        assert value == pytest.approx(objective(exact, batch, where, settings, power), rel=1e-5)
        want = differences(exact, batch, where, settings, power)
        np.testing.assert_allclose(gradient, want, rtol=2e-4, atol=1e-8)
        assert 0 < float(sums.clipped) < float(sums.tokens)
        if ratio == "hoelder_tokens":  # each token has its own clip
            assert np.count_nonzero(want) == float(sums.tokens) - float(sums.clipped)


def test_hoelder_means_by_hand():
    batch = tokens([0.0] * 4, [1.0] * 4, [1.0, 1.0, 1.0, 0.0], response=[0, 0, 1, 1])
    settings = replace(NARROW, **WIDE)
    for power, mean in ((2.0, math.sqrt(8.5)), (1.0, 2.5), (0.0, 2.0), (-1.0, 1.6)):
        value, gradient, _ = run(settings, np.log([1.0, 4.0, 3.0, 7.0]), batch, power)
        assert value == pytest.approx((-mean - 3.0) / 2, rel=1e-6)
        share = np.array([1.0, 4.0**power]) / (
            1 + 4.0**power
        )  # the softmax of p times the log-ratios
        np.testing.assert_allclose(2 * gradient, [[*(-mean * share), -3.0, 0.0]], rtol=1e-6)


def test_gmpo_clips_tokens_and_only_towards_their_advantage():
    """Ratios e and 1/e between exp(-0.4) and exp(0.4): (e^0.4 / e)^(1/2), and with A < 0 (e /
    e^0.4)^(1/2).
    """
    bounds = {"clip_low": 1 - math.exp(-0.4), "clip_high": math.exp(0.4) - 1}
    settings = replace(NARROW, ratio="hoelder_tokens", **bounds)
    for advantage, want, slope in (
        (2.0, -2 * math.exp(-0.3), [0.0, -math.exp(-0.3)]),
        (-2.0, 2 * math.exp(0.3), [math.exp(0.3), 0.0]),
    ):
        value, gradient, sums = run(settings, [1.0, -1.0], tokens([0.0, 0.0], [advantage] * 2))
        assert value == pytest.approx(want, rel=1e-6)
        np.testing.assert_allclose(gradient, [slope], rtol=1e-6)
        assert float(sums.clipped) == 1


def test_the_clips_of_tokens_follow_the_scale_of_their_response():
    clips = LossSettings(0.5, 0.5, math.inf, ratio="hoelder_tokens", mean="responses")
    batch = tokens([0.0] * 3, [1.0, 1.0, 1.0], response=[0, 0, 1])
    batch = replace(batch, clip_scale=jnp.asarray([[0.4, 0.4, 2.0]]))
    value, gradient, _ = run(clips, np.log([1.5, 1.0, 1.9]), batch)  # at most 1.2, and at most 2
    assert value == pytest.approx((-math.sqrt(1.2) - 1.9) / 2, rel=1e-6)
    np.testing.assert_allclose(gradient, [[0.0, -math.sqrt(1.2) / 4, -0.95]], rtol=1e-6)


def test_at_p_0_hoelder_is_gspo_and_without_clips_gmpo_is_too():
    logprob, batch, _ = responses(4)
    gspo = LossSettings(3e-3, 4e-3, math.inf, ratio="sequence", mean="responses")
    hoelder = replace(gspo, ratio="hoelder")
    open_gspo = replace(gspo, **WIDE)
    gmpo = replace(gspo, ratio="hoelder_tokens", **WIDE)
    for settings, other in ((gspo, hoelder), (open_gspo, gmpo)):
        (value, gradient, _), (same_value, same_gradient, _) = (
            run(s, logprob, batch) for s in (settings, other)
        )
        assert value == pytest.approx(same_value, rel=1e-6)
        np.testing.assert_allclose(gradient, same_gradient, rtol=1e-5, atol=1e-9)
    for power in (1e-4, -1e-5, 1e-9):  # no cancellation on the way to 0
        np.testing.assert_allclose(run(gmpo, logprob, batch, power)[1], same_gradient, rtol=1e-4)


def test_a_response_of_one_token_has_the_ratio_of_that_token():
    rng = np.random.default_rng(0)
    batch = tokens(rng.normal(size=9) - 2, rng.normal(size=9), response=np.arange(9))
    logprob = np.asarray(batch.behaviour) + rng.normal(size=9)
    token, product, hoelder = (
        run(LossSettings(0.2, 0.3, ratio=ratio), logprob, batch, -1.5)[1]
        for ratio in ("token", "product", "hoelder")
    )
    assert 0 < np.count_nonzero(token) < 9
    np.testing.assert_allclose(product, token, rtol=1e-5)
    np.testing.assert_allclose(hoelder, token, rtol=1e-5)


def test_gspo_token_gives_each_token_its_own_advantage():
    """In float64: s_t = sg(s) pi / sg(pi), the mean over responses of mean min(s_t A_t, clip(s_t)
    A_t) (eq. 13, 14).
    """
    logprob, batch, where = responses(5)
    batch = replace(
        batch,
        advantage=jnp.asarray(np.random.default_rng(5).normal(size=logprob.shape), jnp.float32),
    )
    want = np.zeros(logprob.shape)
    for row, here in where:
        new, old, a = (
            np.asarray(x, np.float64)[row, here]
            for x in (logprob, batch.behaviour, batch.advantage)
        )
        s = np.exp(np.mean(new - old))
        free = s * a <= np.clip(s, 1 - 3e-3, 1 + 4e-3) * a
        want[row, here] = np.where(free, -s * a, 0.0) / len(new) / len(where)
    gspo = LossSettings(3e-3, 4e-3, math.inf, ratio="sequence", mean="responses")
    np.testing.assert_allclose(run(gspo, logprob, batch)[1], want, rtol=1e-5, atol=1e-9)
    assert 0 < np.count_nonzero(want) < np.count_nonzero(np.asarray(batch.weight))


@pytest.mark.parametrize("ratio", ["product", "hoelder", "hoelder_tokens"])
def test_ratios_stay_finite_and_padding_may_hold_anything(ratio):
    behaviour = [-200.0, -1.0, -1.0, -200.0, -1.0, np.nan]
    logprob = [-1.0, -200.0, -200.0, -1.0, -200.0, np.nan]
    weight = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    advantage = [1.0, 1.0, -1.0, -1.0, 1.0, np.nan]
    batch = tokens(behaviour, advantage, weight, response=[0, 0, 1, 1, 2, 2])
    for power in (-2.0, 0.0, 2.0):
        value, gradient, _ = run(replace(NARROW, ratio=ratio), logprob, batch, power)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        assert gradient[0, -1] == 0


def test_p_follows_the_iteration_in_one_program():
    """p = 1 - k / 2: the largest ratio is the largest of the responses' Hölder means."""
    batch = make_batch()
    optimizer = make_optimizer(lr=1e-9)
    update = make_update(
        forward, optimizer, replace(NARROW, **WIDE, power=lambda k: 1.0 - k / 2), chunk=16
    )
    now = np.asarray(make_logprobs(forward)(params(), batch), np.float64)
    ratios = np.exp(now - batch.behaviour)
    response = np.asarray(response_numbers(batch))
    weight = batch.weight
    for iteration in (0, 2, 4):
        state = init_state(params(), optimizer)
        largest = float(update(state, batch, None, np.int32(iteration))[1]["policy/ratio_max"])
        means = [
            mean_ratio(ratios[m, b][mine], 1.0 - iteration / 2)
            for m, b in np.ndindex(now.shape[:2])
            for n in range(8)
            if (mine := (response[m, b] == n) & np.asarray(weight[m, b] > 0)).any()
        ]
        assert largest == pytest.approx(max(means), rel=1e-5)
    assert update._cache_size() == 1


def mismatched(seed: int) -> tuple[jax.Array, StepBatch, Where]:
    """Responses whose learner and engine differ: the first and the fourth by 0.02 a token, the
    others by 0.002.
    """
    logprob, batch, where = responses(seed)
    noise = np.random.default_rng(seed).normal(0.002, 1e-5, logprob.shape)
    for number in (0, 3):
        noise[where[number]] += 0.02 * (-1) ** number
    return (
        logprob,
        replace(batch, proximal=batch.behaviour, behaviour=batch.behaviour - noise),
        where,
    )


@pytest.mark.parametrize(
    ("correction", "cap", "mean"),
    [
        ("masked_sequence", 1.5, "tokens"),
        pytest.param("masked_mean", 1.01, "responses", marks=pytest.mark.slow),
        ("masked_mean", 1.01, "constant"),
    ],
)
def test_a_masked_response_counts_as_little_as_an_absent_one(correction, cap, mean):
    logprob, batch, where = mismatched(6)
    settings = LossSettings(
        0.02, 0.03, mean=mean, constant=512, correction=correction, importance_cap=cap
    )
    weight = np.zeros(logprob.shape, np.float32)
    number = np.zeros(logprob.shape, np.int32)
    for row, here in (where[n] for n in range(len(where)) if n not in (0, 3)):
        number[row, here] = number[row].max() + weight[row].any()
        weight[row, here] = 1.0
    alone = tokens(
        batch.behaviour, batch.advantage, weight, proximal=batch.proximal, response=number
    )
    alone = replace(alone, responses=jnp.where(weight.any(1, keepdims=True), alone.responses, 0))
    (value, gradient, _), (want, slope, _) = (
        run(*how)
        for how in (
            (settings, logprob, batch),
            (replace(settings, correction="none"), logprob, alone),
        )
    )
    assert value == pytest.approx(want, rel=1e-5)
    np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-9)
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]) if np.ndim(x) else x, batch)
    assert float(loss_divisor(stacked, settings)) == pytest.approx(
        2 * float(loss_divisor(batch, settings)), rel=1e-5
    )


def test_what_is_masked_is_counted():
    batch = make_batch()
    optimizer = make_optimizer(lr=1e-3)
    batch = replace(batch, proximal=batch.behaviour)
    whole, masked = (
        make_update(forward, optimizer, LossSettings(0.2, 0.2, correction=correction), chunk=16)
        for correction in ("none", "masked_sequence")
    )

    def metrics(update, shift) -> dict[str, float]:
        state = init_state(params(), optimizer)
        return update(state, replace(batch, behaviour=batch.behaviour + jnp.float32(shift)), None)[
            1
        ]

    plain = metrics(whole, 0.0)
    none = metrics(masked, 0.0)
    everything = metrics(masked, -1.0)
    assert "policy/masked_fraction" not in plain
    assert (float(none["policy/masked_fraction"]), none["policy/loss"]) == (
        0.0,
        plain["policy/loss"],
    )
    assert (float(everything["policy/masked_fraction"]), float(everything["policy/loss"])) == (
        1.0,
        0.0,
    )
    first_rows = np.zeros(batch.weight.shape)
    first_rows[:, 0] = -1.0
    weight = np.asarray(batch.weight)
    some = metrics(masked, first_rows)
    assert float(some["policy/masked_fraction"]) == pytest.approx(weight[:, 0].sum() / weight.sum())


def test_truncated_weights_of_tokens_and_of_whole_responses_by_hand():
    """The engine finds the first response's tokens rarer by 2 and 1.5, the second's by 1/4."""
    batch = tokens(-np.log([2.0, 1.5, 0.25]), [1.0] * 3, proximal=jnp.zeros(3), response=[0, 0, 1])
    for correction, cap, want in (
        ("truncated", 1.8, 1.8 + 1.5 + 0.25),
        ("truncated_sequence", 10.0, 3.0 + 3.0 + 0.25),
        ("truncated_sequence", 2.5, 2.5 + 2.5 + 0.25),
    ):
        settings = LossSettings(0.2, 0.2, correction=correction, importance_cap=cap)
        assert run(settings, [0.0] * 3, batch)[0] == pytest.approx(-want / 3, rel=1e-6)
