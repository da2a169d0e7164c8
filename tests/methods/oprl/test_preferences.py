"""Pairs of episodes: the two passes give the gradient of the loss of DPO."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.samples import Sample
from gigpo_jax.methods.oprl.preferences import make_slope_update, pair_slopes
from gigpo_jax.models import decoder, next_tokens
from gigpo_jax.rl.optimizer import Optimizer
from gigpo_jax.rl.train_step import init_state
from tests.models.shapes import random_params

BETA = 0.7
GROUP = np.array([4, 4, 4, 9, 9, 4])
WON = np.array([True, False, True, False, True, False])
SHAPE = decoder.DecoderConfig(31, 16, 32, 2, 2, 1, 8)
TEMPERATURE = 0.7


def direct_loss(ratio: jax.Array) -> jax.Array:
    """The summed loss of all pairs, by definition."""
    total = jnp.zeros(())
    for i in range(len(GROUP)):
        for j in range(len(GROUP)):
            if GROUP[i] == GROUP[j] and WON[i] and not WON[j]:
                total -= jax.nn.log_sigmoid(BETA * (ratio[i] - ratio[j]))
    return total


def test_slopes_are_the_derivative_of_the_loss() -> None:
    ratio = np.array([0.3, -1.2, 2.0, 0.4, -0.5, 0.3], np.float32)
    sums = pair_slopes(ratio, WON, GROUP, beta=BETA)
    loss, slope = jax.value_and_grad(direct_loss)(jnp.asarray(ratio))
    np.testing.assert_allclose(sums.slope, slope, rtol=1e-5)
    assert sums.loss == pytest.approx(float(loss), rel=1e-5)
    # 2 x 2 pairs of one group and 1 of the other; 0.3 is not above 0.3, nor -0.5 above 0.4.
    assert (sums.pairs, sums.right) == (5, 3)


def test_groups_without_a_pair_and_extreme_ratios() -> None:
    sums = pair_slopes(np.array([1.0, 2.0]), np.array([True, True]), np.zeros(2), beta=1.0)
    assert (sums.pairs, sums.loss, sums.slope.tolist()) == (0, 0.0, [0.0, 0.0])
    sums = pair_slopes(np.array([-1e4, 1e4]), np.array([True, False]), np.zeros(2), beta=1.0)
    assert sums.slope.tolist() == [-1.0, 1.0]
    assert sums.loss == 2e4
    none = pair_slopes(np.zeros(0), np.zeros(0, bool), np.zeros(0), beta=1.0)
    assert none.pairs == 0


def test_the_update_is_a_step_along_the_gradient_of_the_pairs() -> None:
    """Of the loss of whole episodes by autodiff, with samples in several packed microbatches."""
    rng = np.random.default_rng(0)
    params = random_params(SHAPE)
    episode = np.repeat(np.arange(6), 2)
    tokens = rng.integers(0, 31, (12, 9)).astype(np.int32)
    old = random_params(SHAPE, 1)

    def ratios(params: decoder.Params) -> jax.Array:
        def score(params: decoder.Params) -> jax.Array:
            logits = next_tokens.logits(SHAPE, params, tokens[:, :-1])[:, 5:] / TEMPERATURE
            chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 6:, None], -1)
            return chosen.sum((1, 2))

        return jax.ops.segment_sum(score(params) - score(old), episode, 6)

    ratio, expected = jax.jit(
        lambda params: (ratios(params), jax.grad(lambda p: direct_loss(ratios(p)))(params))
    )(params)
    slope = pair_slopes(np.asarray(ratio), WON, GROUP, beta=BETA).slope
    samples = [
        Sample(row[:6], row[6:], np.zeros(3, np.float32), advantage=float(slope[number]))
        for row, number in zip(tokens, episode, strict=True)
    ]
    (batch,) = make_minibatches(samples, steps=12, row_length=16, rows=2, rng=rng)
    assert batch.microbatches > 1
    # A step of 1 along the gradient itself.
    optimizer = Optimizer(optax.identity(), optax.constant_schedule(1.0))

    def forward(params, frozen, *inputs):
        del frozen
        hidden = decoder.hidden_states(SHAPE, params, *inputs[:3])
        return hidden, decoder.output_embedding(SHAPE, params)

    learn = make_slope_update(
        forward, optimizer, name="preference", chunk=64, temperature=TEMPERATURE
    )
    state, metrics = learn(init_state(jax.tree.map(jnp.copy, params), optimizer), batch)
    found = jax.tree.map(lambda old, new: old - new, params, state.params)
    for one, other in zip(*map(jax.tree.leaves, (expected, found)), strict=True):
        np.testing.assert_allclose(other, one, atol=2e-5)
    assert float(metrics["preference/grad_norm"]) > 0.01
    # Padding of any content changes nothing.
    noise = replace(batch, advantage=np.where(batch.weight > 0, batch.advantage, 1e9))
    again, _ = learn(init_state(jax.tree.map(jnp.copy, params), optimizer), noise)
    for one, other in zip(*map(jax.tree.leaves, (state.params, again.params)), strict=True):
        np.testing.assert_array_equal(one, other)
