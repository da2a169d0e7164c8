"""SERL's token advantages by hand, against a loop in float64, and in the loss."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.methods.serl.advantages import hindsight_advantages
from tests.methods import oracle
from tests.rl.test_losses import CLIP, loss_of, tokens

SERL = {"strength": 0.5, "iterations": 50, "weight_clip": 0.2}


def test_by_hand() -> None:
    # Half of the iterations: l = 0.25. Weights 1.1 and, for A < 0, 1 / 1.1; a clipped 1.2 and 0.8;
    # a thought; A = 0.
    difference = np.array([math.log(1.1), math.log(1.1), 30.0, 30.0, 0.1, 0.1], np.float32)
    advantage = np.array([1, -1, 1, -1, 1, 0], np.float32)
    action = np.array([True, True, True, True, False, True])
    got = hindsight_advantages(advantage, difference, action, 25, **SERL)
    np.testing.assert_allclose(got, [1.025, -0.75 - 0.25 / 1.1, 1.05, -0.95, 1, 0], rtol=1e-6)


def test_a_token_without_hindsight_keeps_its_advantage() -> None:
    difference = np.array([math.inf, math.inf, 30.0], np.float32)
    advantage = np.array([1, -1, 1], np.float32)
    got = hindsight_advantages(advantage, difference, np.ones(3, bool), 0, **SERL)
    np.testing.assert_allclose(got, [1, -1, 1.1], rtol=1e-6)


def test_random_tokens_equal_the_oracle() -> None:
    rng = np.random.default_rng(0)
    advantage, difference = (rng.normal(size=(40, 7)).astype(np.float32) * 2 for _ in range(2))
    action = rng.random((40, 7)) < 0.6
    weighed = jax.jit(partial(hindsight_advantages, strength=0.7, iterations=8, weight_clip=0.3))
    for iteration in (0, 3, 7, 8, 20):
        want = oracle.serl(
            advantage, difference, action, iteration, strength=0.7, iterations=8, weight_clip=0.3
        )
        np.testing.assert_allclose(
            weighed(advantage, difference, action, iteration), want, rtol=1e-5
        )
        assert np.array_equal(want, advantage.astype(float)) == (iteration >= 8)


def test_what_changes_nothing() -> None:
    advantage = np.array([0.3, -1.7], np.float32)
    action = np.array([True, True])
    plain = (
        (advantage * 0, 0, SERL),
        (advantage, 50, SERL),
        (advantage, 0, SERL | {"strength": 0.0}),
    )
    for difference, iteration, settings in plain:
        got = hindsight_advantages(advantage, difference, action, iteration, **settings)
        np.testing.assert_array_equal(got, advantage)


def test_the_loss_has_the_advantages_and_no_gradient_through_their_weights() -> None:
    rng = np.random.default_rng(1)
    behaviour, logprob, teacher = (
        rng.normal(-1.0, 0.2, (2, 5)).astype(np.float32) for _ in range(3)
    )
    advantage = rng.normal(size=(2, 5)).astype(np.float32)
    action = rng.random((2, 5)) < 0.6
    weight = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.float32)
    want = oracle.serl(advantage, teacher - logprob, action, 10, **SERL)
    assert np.abs(want - advantage).max() > 0.02
    teacher[1, 3:] = np.nan  # padding
    batch = dataclasses.replace(
        tokens(behaviour, advantage, weight), teacher=teacher, action_mask=action
    )
    settings = dataclasses.replace(
        CLIP, token_advantages=lambda a, d, m, k: hindsight_advantages(a, d, m, 10, **SERL)
    )
    for got, expected in zip(
        jax.value_and_grad(lambda x: loss_of(x, batch, settings).loss)(jnp.asarray(logprob)),
        jax.value_and_grad(lambda x: loss_of(x, tokens(behaviour, want, weight)).loss)(
            jnp.asarray(logprob)
        ),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)
