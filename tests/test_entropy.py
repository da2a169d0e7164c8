"""Entropies of packed steps are those of each step by itself."""

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config
from gigpo_jax.entropy import make_token_entropies
from gigpo_jax.models import qwen2
from gigpo_jax.policy import fresh_policy
from gigpo_jax.run import partition
from gigpo_jax.trajectory import Step, Turn


def small() -> ConfigDict:
    config = default_config()
    config.model.shape.update(hidden_size=16, intermediate_size=32, num_layers=2, num_heads=2, num_kv_heads=1)
    config.model.compute_dtype = "float32"
    config.batch.row_length, config.batch.rows, config.train.minibatch = 48, 1, 4
    config.sampling.max_prompt_tokens, config.sampling.max_response_tokens = 24, 12
    return config


def step(number: int, rng: np.random.Generator, vocabulary: int) -> Step:
    prompt, response = (rng.integers(vocabulary, size=n).astype(np.int32) for n in (rng.integers(1, 20), number % 6))
    turn = Turn(prompt, response, np.zeros(len(response), np.float32), *[""] * 3, True, None, "", "", 0.0, 0.0, "", 0)
    return Step(number, 0, 0, turn)


@pytest.mark.parametrize("temperature", [0.4, 0.0])
def test_every_token_has_the_entropy_of_its_own_place(temperature: float) -> None:
    config, mesh = small(), partition.make_mesh(data=1, fsdp=1, tensor=1)
    policy = fresh_policy(config, mesh, ["a b c d e f g h i j k l m n o p"])
    rng = np.random.default_rng(0)
    steps = [step(number, rng, policy.config.vocab_size) for number in range(23)]
    found = make_token_entropies(config, policy, mesh, temperature)(policy.params, None, steps)
    assert len(found) == len(steps)
    for one, entropy in zip(steps, found, strict=True):
        tokens = np.concatenate([one.turn.prompt_tokens, one.turn.response_tokens])
        logits = qwen2.logits(policy.config, policy.params, tokens[None])[0, len(one.turn.prompt_tokens) - 1 : -1]
        log_p = jax.nn.log_softmax(logits.astype(np.float32) / (temperature or 1.0))
        expected = -(np.exp(log_p) * log_p).sum(-1)[: len(one.turn.response_tokens)]
        np.testing.assert_allclose(entropy, expected, atol=1e-4)
