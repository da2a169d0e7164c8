"""Engines of models with experts: greedy tokens of the plain forward, and the experts of tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.models import decoder
from gigpo_jax.models.routes import chosen_experts
from tests.engines.jax.random_model import EXPERTS, run
from tests.models.shapes import random_params

pytestmark = pytest.mark.slow

LENGTH = 40  # tokens of a row
FIRST = [np.random.default_rng(9).integers(0, 60, 21).tolist()]
# The second prompt shares chunks of the first one, and has more.
PROMPTS = [*FIRST, [*FIRST[0][:17], 5, 4, 3], [7, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9]]
PARAMS = random_params(EXPERTS)


@jax.jit
def forward(params: decoder.Params, tokens: jax.Array, routes: jax.Array | None) -> tuple:
    hidden = decoder.hidden_states(EXPERTS, params, tokens, routes=routes)
    chosen = chosen_experts(EXPERTS, params, tokens)
    return jax.nn.log_softmax(decoder.score_tokens(EXPERTS, params, hidden)), chosen


@pytest.mark.parametrize(("dtype", "chunk"), [("float32", 0), ("bfloat16", 8)])
def test_greedy_responses_and_the_experts_of_their_tokens(dtype: str, chunk: int) -> None:
    settings = EngineSettings(
        slots=2,
        max_length=LENGTH,
        prefill_buckets=() if chunk else (24,),
        prefill_rows=(2,),
        prefill_chunk=chunk,
        decode_steps=3,
        dtype=jnp.dtype(dtype),
        keeps_routes=True,
    )
    greedy = SamplingParams(temperature=0.0, max_tokens=11)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), PARAMS)
    with JaxEngine(EXPERTS, PARAMS, settings) as engine:
        engine.warmup()
        count = engine.compile_count
        # More prompts than slots: slots are used again, also those that a prompt was copied from.
        responses = run(*(engine.generate(prompt, greedy) for prompt in PROMPTS))
        assert engine.compile_count == count
        assert bool(engine.reused_tokens) == bool(chunk)
        # Alone, in another order and in other slots: each in a batch of its own.
        alone = [run(engine.generate(prompt, greedy))[0] for prompt in reversed(PROMPTS)]
    for response, other in zip(responses, reversed(alone), strict=True):
        np.testing.assert_array_equal(response.tokens, other.tokens)
        np.testing.assert_array_equal(response.logprobs, other.logprobs)
        np.testing.assert_array_equal(response.routes, other.routes)
    for prompt, response in zip(PROMPTS, responses, strict=True):
        length = len(prompt) + 11 - 1
        assert (response.routes.shape, response.routes.dtype) == ((length, 4), np.uint8)
        tokens = np.zeros((1, LENGTH), np.int32)
        tokens[0, : length + 1] = [*prompt, *response.tokens]
        replayed = np.zeros((1, LENGTH, 4), np.uint8)
        replayed[0, :length] = response.routes
        scores, chosen = forward(params, tokens, None if dtype == "float32" else replayed)
        scores = scores[0, len(prompt) - 1 : length]
        atol = 1e-4 if dtype == "float32" else 0.15
        drawn = scores[np.arange(11), response.tokens]
        np.testing.assert_allclose(drawn, response.logprobs, atol=atol)
        np.testing.assert_allclose(drawn, scores.max(-1), atol=atol)
        same = np.asarray(chosen)[0, :length] == response.routes
        # Experts of nearly equal scores may change places in bfloat16.
        assert same.mean() > (0.999 if dtype == "float32" else 0.9)


def test_a_continued_response_has_the_experts_with_which_its_tokens_were_sampled() -> None:
    settings = EngineSettings(
        slots=2,
        max_length=LENGTH,
        prefill_rows=(2,),
        prefill_chunk=8,
        decode_steps=3,
        dtype=jnp.dtype("float32"),
        keeps_routes=True,
        keep_responses=True,
    )
    params = SamplingParams(temperature=1.0, max_tokens=7, key=(3, 1), session=(1, 1))
    with JaxEngine(EXPERTS, PARAMS, settings) as engine:
        (first,) = run(engine.generate(PROMPTS[3], params))
        past = [*PROMPTS[3], *first.tokens.tolist()]
        longer = [*past, 11, 12, 13]
        # Another conversation writes into the other slot in the meantime.
        (second, _) = run(
            engine.generate(longer, params),
            engine.generate(PROMPTS[2], SamplingParams(max_tokens=9, session=(2, 1))),
        )
        assert engine.reused_tokens == len(past) - 1
    np.testing.assert_array_equal(second.routes[: len(past) - 1], first.routes)
    tokens = np.zeros((1, LENGTH), np.int32)
    length = len(longer) + len(second.tokens) - 1
    tokens[0, : length + 1] = [*longer, *second.tokens]
    scores, chosen = forward(PARAMS, tokens, None)
    assert (len(second.routes), second.routes.shape[1]) == (length, 4)
    # In float32 the experts of decoding are the experts of one whole reading.
    np.testing.assert_array_equal(second.routes, np.asarray(chosen)[0, :length])
    drawn = scores[0, np.arange(len(longer) - 1, length), second.tokens]
    np.testing.assert_allclose(drawn, second.logprobs, atol=1e-4)
