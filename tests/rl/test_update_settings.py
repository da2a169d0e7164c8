"""What the update hands on to loss and optimizer; the model is an embedding alone, so that programs
compile at once.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.samples import Sample
from gigpo_jax.rl.batch_logprobs import make_logprobs
from gigpo_jax.rl.losses import LossSettings
from gigpo_jax.rl.optimizer import make_optimizer
from gigpo_jax.rl.train_step import TrainState, init_state
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.update import make_update

CLIP = {"clip_low": 0.2, "clip_high": 0.28}
OPTIMIZER = make_optimizer(lr=1e-2)


def forward(params, _, tokens, positions, segment_ids, images):
    return params["embed"][tokens], params["embed"]


def params(dtype=jnp.float32):
    return {"embed": jax.random.normal(jax.random.key(0), (31, 8)).astype(dtype)}


def make_batch(n: int = 12) -> StepBatch:
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(n):
        tokens = rng.integers(0, 31, int(rng.integers(4, 12))).astype(np.int32)
        samples.append(
            Sample(
                tokens[:2], tokens[2:], np.zeros(len(tokens) - 2, np.float32), float(rng.normal())
            )
        )
    (batch,) = make_minibatches(samples, steps=n, row_length=24, rows=2, rng=rng)
    return jax.tree.map(jnp.asarray, batch)


def run(
    batch: StepBatch,
    state: TrainState | None = None,
    forward=forward,
    temperature: float = 1.0,
    **loss,
) -> tuple[TrainState, dict]:
    update = make_update(
        forward, OPTIMIZER, LossSettings(**CLIP, **loss), chunk=16, temperature=temperature
    )
    return update(init_state(params(), OPTIMIZER) if state is None else state, batch)


def test_the_update_scores_at_the_temperature_of_the_sampler() -> None:
    batch = make_batch()
    own = make_logprobs(forward, temperature=0.7)(params(), batch)
    _, metrics = run(dataclasses.replace(batch, behaviour=own), temperature=0.7)
    assert float(metrics["policy/ratio_max"]) == pytest.approx(1.0, abs=1e-5)
    assert float(metrics["policy/behaviour_mismatch"]) < 1e-5


def test_truncated_importance_weights_reach_the_loss() -> None:
    batch = make_batch()
    own = make_logprobs(forward)(params(), batch)
    batch = dataclasses.replace(
        batch, proximal=own, behaviour=own - 1.0
    )  # the engine thought all responses rarer
    plain, capped = (run(batch, correction=correction)[1] for correction in ("none", "truncated"))
    assert float(capped["policy/loss"]) == pytest.approx(2 * float(plain["policy/loss"]), rel=1e-5)
    assert float(plain["policy/loss"]) != 0


def test_the_ratio_of_a_whole_response_is_its_own_and_no_neighbours() -> None:
    batch = make_batch()
    own = make_logprobs(forward)(params(), batch)
    gap = jnp.asarray(np.random.default_rng(1).normal(0, 0.3, own.shape), jnp.float32)
    _, metrics = run(dataclasses.replace(batch, behaviour=own - gap), ratio="sequence")
    segments, index, weight = (
        np.asarray(x) for x in (batch.segment_ids, batch.response_index, batch.weight)
    )
    means = []
    for m, b in np.ndindex(weight.shape[:2]):
        owner = segments[m, b][index[m, b]]
        used = weight[m, b] > 0
        means += [
            float(gap[m, b][used & (owner == s)].mean()) for s in sorted(set(owner[used].tolist()))
        ]
    assert len(means) == 12
    assert float(metrics["policy/ratio_max"]) == pytest.approx(np.exp(max(means)), rel=1e-4)


def test_a_gradient_that_is_not_finite_is_skipped_though_the_loss_is() -> None:
    def steep(p, _, tokens, positions, segment_ids, images):
        zero = p["embed"][0, 0] - jax.lax.stop_gradient(p["embed"][0, 0])
        return p["embed"][tokens] + jnp.sqrt(zero), p[
            "embed"
        ]  # the root of zero has no finite slope

    state, metrics = run(make_batch(), forward=steep)
    assert np.isfinite(float(metrics["policy/loss"]))
    assert not np.isfinite(float(metrics["policy/grad_norm"]))
    assert (int(state.step), int(state.skipped)) == (0, 1)
    np.testing.assert_array_equal(np.asarray(state.params["embed"]), np.asarray(params()["embed"]))


def test_parameters_in_bfloat16_have_moments_in_float32() -> None:
    state, _ = run(make_batch(), init_state(params(jnp.bfloat16), OPTIMIZER))
    assert state.params["embed"].dtype == jnp.bfloat16
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
    assert [x.dtype for x in moments] == [jnp.float32, jnp.float32]


def test_clip_moments_and_decay_by_hand() -> None:
    """One step from a gradient of norm 10: clipped to 2, both moments of it, decay on kernels
    alone.
    """
    optimizer = make_optimizer(lr=0.1, b1=0.8, b2=0.9, weight_decay=0.5, grad_clip=2.0)
    weights = {
        "kernel": jnp.asarray([3.0, 4.0]),
        "bias": jnp.asarray([5.0]),
        "scale": jnp.asarray([7.0]),
    }
    grads = {"kernel": jnp.asarray([6.0, 8.0]), "bias": jnp.zeros(1), "scale": jnp.zeros(1)}
    updates, state = optimizer.transform.update(
        grads, init_state(weights, optimizer).opt_state, weights
    )
    adam = state[1]
    np.testing.assert_allclose(adam.mu["kernel"], [0.2 * 1.2, 0.2 * 1.6], rtol=1e-6)
    np.testing.assert_allclose(adam.nu["kernel"], [0.1 * 1.2**2, 0.1 * 1.6**2], rtol=1e-5)
    # Bias-corrected, the first step has length 1 in every entry; decay adds half the weight.
    np.testing.assert_allclose(updates["kernel"], [1 + 1.5, 1 + 2.0], rtol=1e-5)
    assert float(updates["bias"][0]) == float(updates["scale"][0]) == 0.0
    assert float(optax.tree.norm(adam.mu)) == pytest.approx(0.2 * 2.0, rel=1e-6)
