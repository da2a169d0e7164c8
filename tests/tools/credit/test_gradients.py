"""Sketches of gradients against the gradients themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.learner.samples import step_samples
from gigpo_jax.models import next_tokens
from gigpo_jax.modes.model_folder import fresh_policy
from gigpo_jax.tools.credit.gradients import WIDTH, fold_array, group_gradients
from tests.learner.test_token_logprobs import pad_texts, small, step


def test_a_sketch_keeps_lengths_and_angles_of_arrays_with_structure() -> None:
    ones = jnp.ones((4, WIDTH))
    half = jnp.ones((4, WIDTH)).at[2:].set(0.0)
    long, short = (fold_array(array, 0) for array in (ones, half))
    assert float(long @ long) / (4 * WIDTH) == pytest.approx(1.0, abs=0.05)
    assert float(short @ long) / (2 * WIDTH) == pytest.approx(1.0, abs=0.05)
    assert abs(float(fold_array(ones, 1) @ long)) / (4 * WIDTH) < 0.05, (
        "another array has other signs"
    )


def test_inner_products_of_sketches_are_those_of_the_gradients() -> None:
    config = small()
    mesh = make_mesh(data=1, fsdp=1, tensor=1)
    config.sampling.temperature = 0.7
    policy = fresh_policy(config, mesh, ["a b c d e f g h i j k l m n o p"])
    rng = np.random.default_rng(0)
    steps = [step(number, rng, policy.config.vocab_size) for number in range(1, 10)]
    for step_of_group in steps:
        step_of_group.episode.group = step_of_group.trajectory % 3
    advantages = rng.normal(size=len(steps))
    samples = step_samples(steps)
    texts = pad_texts(samples)
    weights = np.zeros((3, *texts[:, 1:].shape), np.float32)  # [group, step, token]
    for number, sample in enumerate(samples):
        first = len(sample.prompt_tokens) - 1
        tokens = slice(first, first + len(sample.response_tokens))
        weights[steps[number].episode.group, number, tokens] = advantages[number]

    @jax.jit
    def differentiate(params, weight):
        def objective(params):
            logits = next_tokens.logits(policy.config, params, texts)[:, :-1] / 0.7
            found = jnp.take_along_axis(jax.nn.log_softmax(logits), texts[:, 1:, None], -1)
            return (weight * found[..., 0]).sum()

        return jax.grad(objective)(params)

    exact = [
        np.concatenate(
            [np.ravel(leaf) for leaf in jax.tree.leaves(differentiate(policy.params, w))]
        )
        for w in weights
    ]
    got = group_gradients(config, policy, mesh, policy.params, steps)(advantages)
    expected = np.array(exact) @ np.array(exact).T
    lengths = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(
        got @ got.T / np.outer(lengths, lengths), expected / np.outer(lengths, lengths), atol=0.05
    )
