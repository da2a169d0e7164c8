"""Layers with states or windows: prompts share beginnings and continue slots, with the same texts.

Of such a layer a slot has only what the end of its prompt needs.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest

from gigpo_jax.engines.base import SamplingParams, request_key
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from tests.engines.jax.random_model import Letters, run
from tests.models.shapes import SMALL, random_params

# The cache of a window of 6 tokens has room for 22: two chunks that are read together. So a
# response of 8 tokens overwrites no window before the last chunk of a prompt.
SHARED = EngineSettings(slots=3, max_length=96, prefill_rows=(2,), prefill_chunk=8, decode_steps=4)
WHOLE = dataclasses.replace(SHARED, prefill_chunk=0, prefill_buckets=(96,))
NAMES = ("qwen3_5", "gemma3")
TOKENS = np.random.default_rng(3).integers(1, 59, (2, 9))


def ask(engine: JaxEngine, prompt: list[int], number: int, **settings: Any) -> Any:
    settings = {"max_tokens": 8} | settings
    return engine.generate(prompt, SamplingParams(key=request_key(0, 0, 0, 0, number), **settings))


def make_engine(name: str, settings: EngineSettings) -> JaxEngine:
    config = SMALL[name]
    return JaxEngine(config, random_params(config), settings, tokenizer=Letters())


@pytest.mark.parametrize("name", NAMES)
def test_prompts_that_share_a_beginning_have_the_same_bits_alone(name: str) -> None:
    """Groups of equal prompts, more than there are slots, and a prompt that is longer."""
    first, second = ([*range(11), *TOKENS[row].tolist()] for row in range(2))
    prompts = [first, first, second, first, [*first, 1, 2, 3, 4, 5], second, first[:16]]
    with make_engine(name, SHARED) as engine:
        engine.warmup()
        count = engine.compile_count
        group = run(*(ask(engine, prompt, number) for number, prompt in enumerate(prompts)))
        # Two whole chunks of each but the first ones of their kind; of the last prompt no slot has
        # what is behind its one chunk.
        assert engine.reused_tokens == 4 * 16
        # A response of 9 tokens leaves nothing of the windows before it.
        engine._held.clear()
        run(*(ask(engine, second, number, max_tokens=9) for number in range(2)))
        assert engine.reused_tokens == 4 * 16 + (16 if name == "qwen3_5" else 0)
        for number, prompt in enumerate(prompts):
            engine._held.clear()
            (alone,) = run(ask(engine, prompt, number))
            assert alone.tokens.tolist() == group[number].tokens.tolist()
            assert alone.logprobs.tobytes() == group[number].logprobs.tobytes()
        assert engine.compile_count == count
        greedy = run(*(ask(engine, prompt, 0, temperature=0.0) for prompt in prompts))
    with make_engine(name, WHOLE) as engine:
        whole = run(*(ask(engine, prompt, 0, temperature=0.0) for prompt in prompts))
    for one, other in zip(whole, greedy, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_continues_its_slot(name: str) -> None:
    """A state does not, where a stop string ended the response inside of a device call."""
    session = {"session": (1, 1)}
    prompt = list(range(20))
    settings = dataclasses.replace(SHARED, keep_responses=True)
    with make_engine(name, settings) as engine, make_engine(name, WHOLE) as other:
        for turn in range(4):
            before = engine.reused_tokens
            (expected,) = run(ask(other, prompt, turn))
            tokens = expected.tokens.tolist()
            stop = ()
            if turn == 2:
                # The third of the four tokens of a device call.
                stop = (Letters().decode(tokens[1:3]),)
                tokens = tokens[:3]
            (response,) = run(ask(engine, prompt, turn, **session, stop_strings=stop))
            is_new = turn == 0 or (turn == 3 and name == "qwen3_5")
            assert engine.reused_tokens - before == (0 if is_new else len(prompt) - 3)
            assert response.tokens.tolist() == tokens
            np.testing.assert_allclose(
                response.logprobs, expected.logprobs[: len(tokens)], atol=1e-4
            )
            prompt = [*prompt, *tokens, 7, 8]
