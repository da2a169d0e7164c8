"""Sketches of gradients against the gradients themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.models import decoder
from gigpo_jax.modes.model_folder import fresh_policy
from gigpo_jax.tools.credit.gradients import WIDTH, fold_array, group_gradients
from tests.learner.test_token_logprobs import small, step


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
    steps = [type(s)(s.trajectory, s.step, s.trajectory % 3, s.turn) for s in steps]
    groups = [[s for s in steps if s.group == group] for group in range(3)]
    advantages = rng.normal(size=len(steps))

    def objective(params, members):
        total = 0.0
        for s in members:
            tokens = np.concatenate([s.turn.prompt_tokens, s.turn.response_tokens])
            logits = (
                decoder.logits(policy.config, params, tokens[None])[
                    0, len(s.turn.prompt_tokens) - 1 : -1
                ]
                / 0.7
            )
            found = jnp.take_along_axis(
                jax.nn.log_softmax(logits), s.turn.response_tokens[:, None], 1
            )
            total += advantages[steps.index(s)] * found.sum()
        return total

    exact = []
    for members in groups:
        leaves = jax.tree.leaves(jax.grad(objective)(policy.params, members))
        exact.append(np.concatenate([np.ravel(leaf) for leaf in leaves]))
    got = group_gradients(config, policy, mesh, policy.params, steps)(advantages)
    expected = np.array(exact) @ np.array(exact).T
    lengths = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(
        got @ got.T / np.outer(lengths, lengths), expected / np.outer(lengths, lengths), atol=0.05
    )
