"""Weights in flight with a real vLLM server: which weights sampled which token."""

import asyncio
import pathlib

import numpy as np
import pytest

from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.engines.remote.engine import RemoteEngine
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from tests.engines.vllm import serving
from tests.engines.vllm.serving import TINY, learner_logprobs, shaken

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("compiled_once")]

REQUESTS = 256  # four times those that run together
TOKENS = 64


def test_running_requests_go_on_and_each_token_has_its_version_and_log_probability(
    tmp_path: pathlib.Path,
) -> None:
    config, params = load_hf(TINY)
    newer = shaken(params, 3)
    words = load_tokenizer(TINY)
    prompt = words.encode_chat("you are in a room .")

    async def ask_during_push(engine: RemoteEngine) -> list[Completion]:
        requests = [
            asyncio.ensure_future(
                engine.generate(prompt, SamplingParams(max_tokens=TOKENS, key=(7, index)))
            )
            for index in range(REQUESTS)
        ]
        await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(engine.update_weights, newer, 1)
        return await asyncio.gather(*requests)

    weights = tmp_path / "weights"
    process = serving.start(TINY, tmp_path / "logs", weights)
    try:
        serving.wait_up(process)
        with serving.engine(
            config, params, words, urls=(process.url,), weights_dir=weights, inflight=True
        ) as engine:
            responses = asyncio.run(ask_during_push(engine))
            assert engine.retries == 0
    finally:
        process.stop()
    mixed = [response for response in responses if response.versions is not None]
    assert mixed
    assert {response.version for response in responses if response.versions is None} == {0, 1}
    for response in [*mixed, responses[0], responses[-1]]:
        versions = response.versions
        if versions is None:
            versions = np.full(TOKENS, response.version)
        assert np.all(np.diff(versions) >= 0)
        # Behind a push vLLM computes keys and values anew: each token is of one version alone.
        by_old, by_new = (
            learner_logprobs(config, weights, prompt, response.tokens, 1.0)
            for weights in (params, newer)
        )
        expected = np.where(versions == 0, by_old, by_new)
        np.testing.assert_allclose(response.logprobs, expected, atol=1e-3)
