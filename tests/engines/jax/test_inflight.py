"""New weights in the middle of responses: which weights sampled which token, and the bias that the
importance correction removes.
"""

import asyncio
import dataclasses
import time

import jax
import numpy as np
import pytest

from gigpo_jax.engines.base import Completion, SamplingParams, request_key
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.models import decoder
from tests.engines.inflight import logprobs_across, score
from tests.engines.jax.random_model import CONFIG, LIMIT_S

pytestmark = pytest.mark.slow

SAMPLES = 2048
TOKENS = 3  # the weights change before the last one
PROMPT = [3, 1, 4, 1, 5]
SHAPE = dataclasses.replace(CONFIG, vocab_size=12)
SETTINGS = EngineSettings(
    slots=SAMPLES, max_length=8, prefill_buckets=(8,), prefill_rows=(SAMPLES,), decode_steps=1
)
KEEPING = EngineSettings(
    slots=1,
    max_length=32,
    prefill_rows=(1,),
    prefill_chunk=8,
    keep_responses=True,
    decode_steps=1,
)


class Switching(JaxEngine):
    """An engine that gets other weights after its first round, which draws two tokens.

    Attributes:
      later: those weights.
      awaited: number of requests that are there before it begins.
    """

    later: decoder.Params
    awaited: int
    rounds = 0

    def _gather_requests(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not self.rounds and len(self._waiting) < self.awaited:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        self.rounds += 1
        if self.rounds == 2:
            self.update_weights(self.later, 8, inflight=True)


def small(seed: int) -> decoder.Params:
    params = decoder.init_params(SHAPE, jax.random.key(seed))
    return jax.tree.map(lambda leaf: leaf * 6.0 if leaf.ndim > 1 else leaf, params)


OLD = small(0)
NEW = jax.tree.map(lambda a, b: a + 0.35 * b, OLD, small(1))


def switching(settings: EngineSettings, awaited: int) -> Switching:
    engine = Switching(SHAPE, OLD, settings, version=7)
    engine.later, engine.awaited = NEW, awaited
    return engine


async def draw(engine: JaxEngine, prompt: list[int], count: int) -> list[Completion]:
    requests = [
        engine.generate(
            prompt,
            SamplingParams(max_tokens=TOKENS, key=request_key(0, 0, 0, 0, index), session=(1, 2)),
        )
        for index in range(count)
    ]
    return await asyncio.wait_for(asyncio.gather(*requests), LIMIT_S)


def test_each_token_has_its_own_version_and_the_correction_removes_the_bias() -> None:
    """The expectation under the newest weights of a function of the response, by enumeration of all
    responses: the mean over the drawn ones misses it; weighted by newest / behaviour of each token
    it does not; with the ratio of the last token alone it has exactly the bias that the ratios of
    the others say.
    """
    with switching(SETTINGS, SAMPLES) as engine:
        completions = asyncio.run(draw(engine, PROMPT, SAMPLES))
    responses = np.stack([completion.tokens for completion in completions])
    behaviour = np.stack([completion.logprobs for completion in completions]).astype(np.float64)
    for completion in completions:
        assert completion.version == 7
        np.testing.assert_array_equal(completion.versions, [7, 7, 8])
    prompts = np.tile(PROMPT, (SAMPLES, 1))
    expected = logprobs_across(SHAPE, OLD, NEW, prompts, responses, 2)
    np.testing.assert_allclose(behaviour, expected, atol=1e-4)

    def response_logprobs(params: decoder.Params, responses: np.ndarray) -> np.ndarray:
        tokens = np.concatenate([np.tile(PROMPT, (len(responses), 1)), responses], 1)
        return np.asarray(score(SHAPE, params, tokens)[:, len(PROMPT) - 1 :], np.float64)

    by_new = response_logprobs(NEW, responses)
    # Of neither weights alone: the new ones read keys and values of the old ones.
    assert np.abs(behaviour[:, 2] - by_new[:, 2]).mean() > 1e-3
    assert np.abs(behaviour[:, 2] - response_logprobs(OLD, responses)[:, 2]).mean() > 1e-3

    size = SHAPE.vocab_size
    everything = np.stack(np.meshgrid(*[np.arange(size)] * TOKENS, indexing="ij"), -1)
    everything = everything.reshape(-1, TOKENS)
    all_new = response_logprobs(NEW, everything)
    all_old = response_logprobs(OLD, everything)
    # A payoff on which old and new weights differ, so that few samples show the bias.
    all_payoffs = np.tanh((all_new - all_old).sum(1))
    target = np.sum(np.exp(all_new.sum(1)) * all_payoffs)
    last_only = np.sum(np.exp(all_old[:, :2].sum(1) + all_new[:, 2]) * all_payoffs)

    drawn = all_payoffs.reshape((size,) * TOKENS)[tuple(responses.T)]
    ratios = np.exp(by_new - behaviour)
    estimates = {
        "none": drawn,
        "every token": ratios.prod(1) * drawn,
        "last token": ratios[:, 2] * drawn,
    }
    errors = {name: values.std() / SAMPLES**0.5 for name, values in estimates.items()}
    means = {name: values.mean() for name, values in estimates.items()}
    assert abs(means["every token"] - target) < 3 * errors["every token"]
    assert abs(means["none"] - target) > 5 * errors["none"]
    assert abs(means["last token"] - last_only) < 3 * errors["last token"]
    assert abs(last_only - target) > 5 * errors["last token"]


def test_no_later_prompt_reads_keys_and_values_of_several_weights() -> None:
    with switching(KEEPING, 1) as engine:
        # Longer than a chunk, which other prompts share.
        first_prompt = 2 * PROMPT
        (mixed,) = asyncio.run(draw(engine, first_prompt, 1))
        assert mixed.versions is not None
        later_prompt = [*first_prompt, *mixed.tokens.tolist(), 2, 7]
        (later,) = asyncio.run(draw(engine, later_prompt, 1))
        assert (later.version, later.versions, engine.reused_tokens) == (8, None, 0)
        # The slot of a response of one version is kept.
        asyncio.run(draw(engine, [*later_prompt, *later.tokens.tolist(), 5], 1))
        assert engine.reused_tokens > 0
    prompt = np.array([later_prompt])
    expected = score(SHAPE, NEW, np.concatenate([prompt, later.tokens[None]], 1))
    np.testing.assert_allclose(later.logprobs, expected[0, prompt.size - 1 :], atol=1e-4)
