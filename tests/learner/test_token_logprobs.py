"""Scores of packed samples equal the scores of each sample by itself."""

from collections.abc import Sequence

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.learner.samples import Sample, step_samples
from gigpo_jax.learner.signals.policy_scores import token_means
from gigpo_jax.learner.token_logprobs import make_token_logprobs
from gigpo_jax.models import next_tokens
from gigpo_jax.modes.model_folder import fresh_policy
from gigpo_jax.trajectory import Step, Turn
from tests.turns import make_step


def small() -> ConfigDict:
    config = default_config()
    config.model.shape.update(
        hidden_size=16, intermediate_size=32, num_layers=2, num_heads=2, num_kv_heads=1
    )
    config.model.compute_dtype = "float32"
    config.batch.row_length, config.batch.rows, config.train.minibatch = 48, 1, 4
    config.sampling.max_prompt_tokens, config.sampling.max_response_tokens = 24, 12
    return config


def step(number: int, rng: np.random.Generator, vocabulary: int) -> Step:
    prompt, response = (
        rng.integers(vocabulary, size=n).astype(np.int32) for n in (rng.integers(1, 20), number % 6)
    )
    turn = Turn(
        prompt,
        response,
        np.zeros(len(response), np.float32),
        *[""] * 3,
        True,
        None,
        "",
        "",
        0.0,
        0.0,
        "",
        0,
    )
    return make_step(number, 0, turn)


def pad_texts(samples: Sequence[Sample]) -> np.ndarray:
    """[n, T], a row for each sample; a causal model does not see the zeros behind a text."""
    texts = [np.concatenate([s.prompt_tokens, s.response_tokens]) for s in samples]
    longest = max(map(len, texts))
    return np.stack([np.pad(text, (0, longest - len(text))) for text in texts])


@pytest.mark.parametrize("temperature", [0.4, pytest.param(0.0, marks=pytest.mark.slow)])
def test_every_token_has_the_scores_of_its_own_place(temperature: float) -> None:
    config = small()
    mesh = make_mesh(data=1, fsdp=1, tensor=1)
    policy = fresh_policy(config, mesh, ["a b c d e f g h i j k l m n o p"])
    rng = np.random.default_rng(0)
    samples = step_samples([step(number, rng, policy.config.vocab_size) for number in range(23)])
    scores = make_token_logprobs(config, policy, mesh, temperature)(policy.params, None, samples)
    means = {"logprob": token_means(scores.logprob), "entropy": token_means(scores.entropy)}
    assert len(scores.entropy) == len(scores.logprob) == len(samples)
    logits = next_tokens.logits(policy.config, policy.params, pad_texts(samples))
    whole = np.asarray(jax.nn.log_softmax(logits.astype(np.float32) / (temperature or 1.0)))
    for number, sample in enumerate(samples):
        first = len(sample.prompt_tokens) - 1
        log_p = whole[number, first : first + len(sample.response_tokens)]
        entropy = -(np.exp(log_p) * log_p).sum(-1)
        logprob = log_p[np.arange(len(log_p)), sample.response_tokens]
        np.testing.assert_allclose(scores.entropy[number], entropy, atol=1e-4)
        np.testing.assert_allclose(scores.logprob[number], logprob, atol=1e-4)
        for name, values in (("entropy", entropy), ("logprob", logprob)):
            np.testing.assert_allclose(
                means[name][number], values.mean() if len(values) else 0.0, atol=1e-4
            )
