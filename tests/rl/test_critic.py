"""The critic's loss by hand, and its update by plain gradient descent."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.signals.critic import Critic
from gigpo_jax.rl.critic import make_value_update, value_loss
from gigpo_jax.rl.optimizer import Optimizer
from gigpo_jax.rl.train_step import init_state
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.value_targets import ValueTargets


def test_the_loss_by_hand() -> None:
    # value, old, target: 1 beyond the clip towards the target, 1 beyond it away from it, within it,
    # and not learned.
    value = jnp.array([[1.0, -1.0, 0.2, np.nan]])
    targets = ValueTargets(
        *(
            jnp.array([row])
            for row in ([0.0] * 3 + [np.nan], [2.0, 2.0, 2.0, np.nan], [1, 2, 1, 0.0])
        )
    )
    sums = value_loss(value, targets, clip=0.5)
    # max((1 - 2)^2, (0.5 - 2)^2) = 2.25; max((-1 - 2)^2, (-0.5 - 2)^2) = 9, twice; 1.8^2 = 3.24.
    np.testing.assert_allclose(sums.loss, 0.5 * (2.25 + 2 * 9.0 + 3.24), rtol=1e-6)
    assert (float(sums.tokens), float(sums.clipped)) == (4.0, 1.0)
    gradient = jax.grad(lambda value: value_loss(value, targets, clip=0.5).loss)(value)
    np.testing.assert_allclose(gradient, [[0.0, 2 * (-1 - 2), 0.2 - 2, 0.0]], rtol=1e-6)
    unbounded = value_loss(value, targets, clip=np.inf)
    np.testing.assert_allclose(unbounded.loss, 0.5 * (1.0 + 2 * 9.0 + 3.24), rtol=1e-6)


def test_an_update_is_a_step_down_the_mean_loss_however_rows_are_packed() -> None:
    """Of a critic whose value is a weight for each token."""
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(9):
        prompt, response = (rng.integers(1, 8, n).astype(np.int32) for n in rng.integers(1, 6, 2))
        n = len(response)
        values = ValueTargets(
            *rng.normal(size=(2, n)).astype(np.float32), (rng.random(n) < 0.7).astype(np.float32)
        )
        samples.append(Sample(prompt, response, np.zeros(n, np.float32), fields={"values": values}))
    weights = rng.normal(size=8).astype(np.float32)

    def values(params: jax.Array, frozen: jax.Array, batch: StepBatch) -> jax.Array:
        return frozen * params[jnp.take_along_axis(batch.tokens, batch.response_index, axis=1)]

    def mean_loss(params: jax.Array) -> jax.Array:
        loss = jnp.float32(0)
        count = 0.0
        for sample in samples:
            before = np.concatenate([sample.prompt_tokens, sample.response_tokens])[
                len(sample.prompt_tokens) - 1 : -1
            ]
            loss += 0.5 * jnp.sum(
                (2.0 * params[before] - sample.fields["values"].target) ** 2
                * sample.fields["values"].weight
            )
            count += sample.fields["values"].weight.sum()
        return loss / count

    optimizer = Optimizer(optax.identity(), optax.constant_schedule(0.1))
    value, gradient = jax.value_and_grad(mean_loss)(jnp.asarray(weights))
    for rows, row_length in ((1, 16), (3, 32)):
        how = {"steps": 9, "row_length": row_length, "rows": rows, "rng": np.random.default_rng(1)}
        (batch,) = make_minibatches(samples, **how, fields=Critic.batch_fields)
        update = make_value_update(values, optimizer, clip=np.inf)
        state, metrics = update(
            init_state(jnp.asarray(weights), optimizer), batch, jnp.float32(2.0)
        )
        np.testing.assert_allclose(state.params, weights - 0.1 * gradient, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(metrics["critic/loss"], value, rtol=1e-5)
        np.testing.assert_allclose(metrics["critic/grad_norm"], np.linalg.norm(gradient), rtol=1e-5)
        assert (float(metrics["critic/lr"]), float(metrics["critic/skipped"])) == (
            np.float32(0.1),
            0.0,
        )
    plain = make_minibatches([dataclasses.replace(x) for x in samples], **how)[0]
    assert plain.values is None
