"""Prompts that share their beginning are read once: where each is placed, and that responses keep every
bit.
"""

import asyncio
import dataclasses
import random

import numpy as np
import pytest

from gigpo_jax.engines.base import Completion, SamplingParams, request_key
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.engines.jax.prefixes import Prefill, PrefixTable
from gigpo_jax.models import decoder
from tests.engines.jax.random_model import CONFIG, full_logprobs, run, weights

CHUNK = 8
SETTINGS = EngineSettings(
    slots=6, max_length=64, prefill_rows=(4,), prefill_chunk=CHUNK, decode_steps=4
)


def tokens(*parts: tuple[int, int]) -> np.ndarray:
    """A prompt of pieces (seed, length)."""
    return np.concatenate(
        [np.random.default_rng(seed).integers(0, 60, n, np.int32) for seed, n in parts]
    )


def test_a_group_reads_its_prompt_once_and_the_next_prompt_of_a_session_only_what_is_new() -> None:
    prefixes = PrefixTable(4, 1, CHUNK)
    first = tokens((0, 17))
    longer = tokens((0, 17), (1, 10))
    prefixes.begin_round()
    assert prefixes.place_prefill(first, [0, 1, 2, 3]) == Prefill(0, None, range(0), 0, 0)
    # The same round: its chunks are computed in wave 0, so they can be copied in wave 1.
    assert prefixes.place_prefill(first, [1, 2, 3]) == Prefill(1, 0, range(2), 16, 1)
    assert prefixes.place_prefill(tokens((2, 5)), [2, 3]) == Prefill(2, None, range(0), 0, 0)
    prefixes.begin_round()
    assert prefixes.place_prefill(longer, [1, 3]) == Prefill(
        1, None, range(0), 16, 0
    )  # the slot that holds it, without a copy
    assert prefixes.place_prefill(longer, [2, 3]) == Prefill(3, 1, range(3), 24, 1)
    # A prompt of whole chunks that is known in full: the last chunk is read again, for the logits.
    prefixes.begin_round()
    assert prefixes.place_prefill(longer[:24], [2]) == Prefill(2, 0, range(2), 16, 0)
    prefixes.clear()
    assert prefixes.place_prefill(first, [0]) == Prefill(0, None, range(0), 0, 0)


def test_a_slot_is_filled_anew_only_after_it_was_copied_from() -> None:
    prefixes = PrefixTable(3, 1, CHUNK)
    shared = tokens((0, 17))
    new = tokens((5, 17))
    prefixes.place_prefill(shared, [0])
    prefixes.begin_round()
    prefixes.place_prefill(new, [1])  # wave 0
    mixed = np.concatenate([shared[:16], new])
    assert prefixes.place_prefill(mixed, [2]) == Prefill(2, 0, range(2), 16, 0)
    assert prefixes.place_prefill(new, [0]) == Prefill(0, 1, range(2), 16, 1)
    prefixes.begin_round()
    assert prefixes.place_prefill(np.concatenate([mixed, new]), [1]) == Prefill(
        1, 2, range(4), 32, 0
    )
    assert prefixes.place_prefill(tokens((7, 9)), [2]).wave == 0
    prefixes.begin_round()
    prefixes.place_prefill(tokens((8, 30)), [0])
    reading = prefixes.place_prefill(np.concatenate([tokens((8, 30))[:24], new]), [1])
    assert (reading.wave, reading.source, reading.copies) == (1, 0, range(3))
    assert prefixes.place_prefill(tokens((9, 9)), [0]).wave == 1  # slot 0 is read in wave 1


def test_prompts_with_states_continue_the_last_whole_chunk_alone() -> None:
    prefixes = PrefixTable(4, 1, CHUNK, ends_only=True)
    first = tokens((0, 17))
    longer = tokens((0, 17), (1, 10))
    assert prefixes.place_prefill(first, [0, 1, 2, 3]) == Prefill(0, None, range(0), 0, 0)
    assert prefixes.place_prefill(first, [1, 2, 3]) == Prefill(1, 0, range(2), 16, 1)
    # One chunk is common, but no slot has the state behind it.
    other = np.concatenate([first[:8], tokens((5, 12))])
    assert prefixes.place_prefill(other, [2, 3]) == Prefill(2, None, range(0), 0, 0)
    prefixes.begin_round()
    # The slot has the keys and values itself, and its state goes back.
    assert prefixes.place_prefill(longer, [1]) == Prefill(1, 0, range(0), 16, 0)
    prefixes.forget_end(0)
    assert prefixes.place_prefill(first, [3]) == Prefill(3, None, range(0), 0, 0)
    assert prefixes.place_prefill(longer, [0]) == Prefill(0, 1, range(2, 3), 24, 1)


def test_parts_share_nothing() -> None:
    prefixes = PrefixTable(4, 2, CHUNK)
    prompt = tokens((0, 20))
    assert prefixes.place_prefill(prompt, [0, 1, 2, 3]).slot == 0
    prefixes.begin_round()
    assert prefixes.place_prefill(tokens((1, 20)), [1, 2, 3]).slot == 2  # the part with more room
    prefixes.begin_round()
    assert prefixes.place_prefill(prompt, [1, 3]) == Prefill(1, 0, range(2), 16, 0)
    assert prefixes.place_prefill(prompt, [3]) == Prefill(3, None, range(0), 0, 0)


@pytest.fixture(scope="module")
def params() -> decoder.Params:
    return weights(0)


@pytest.fixture(scope="module")
def engine(params):
    with JaxEngine(CONFIG, params, SETTINGS) as engine:
        engine.warmup()
        yield engine


def episodes() -> list[list[list[int]]]:
    """Prompts of 9 episodes in groups of 3, each longer than the one before it, with 11 common
    tokens first.
    """
    rng = random.Random(0)
    made = []
    for number in range(9):
        prompt = [*range(11), *(number // 3 + n for n in range(9))]
        made.append([prompt])
        for _ in range(3):
            prompt = prompt + [rng.randrange(60) for _ in range(rng.randint(1, 9))]
            made[-1].append(prompt)
    return made


def sampling(episode: int, step: int) -> SamplingParams:
    temperature = 0.0 if episode % 2 else 1.0
    return SamplingParams(
        temperature=temperature, max_tokens=12, key=request_key(0, 0, 0, episode, step)
    )


def play(engine: JaxEngine, made: list[list[list[int]]]) -> list[list[Completion]]:
    async def episode(number: int) -> list[Completion]:
        return [
            await engine.generate(prompt, sampling(number, n))
            for n, prompt in enumerate(made[number])
        ]

    return run(*(episode(number) for number in range(len(made))))


def test_a_last_chunk_may_end_behind_the_longest_request(params):
    prompt = tokens((0, 59)).tolist()
    settings = dataclasses.replace(SETTINGS, max_length=61)
    sampling = SamplingParams(max_tokens=2, key=(0, 0))
    with JaxEngine(CONFIG, params, settings) as engine:
        (found,) = run(engine.generate(prompt, sampling))
    np.testing.assert_allclose(
        found.logprobs, full_logprobs(params, prompt, found.tokens, sampling), atol=1e-4
    )


def test_responses_are_the_same_to_the_last_bit_with_and_without_reuse(engine, params):
    made, count, (before, reused) = (
        episodes(),
        engine.compile_count,
        (engine.prompt_tokens, engine.reused_tokens),
    )
    found = play(engine, made)
    assert engine.compile_count == count
    total = sum(len(prompt) for prompts in made for prompt in prompts)
    assert engine.prompt_tokens - before == total
    assert engine.reused_tokens - reused > 0.4 * total
    for number, prompts in enumerate(made):
        for step, prompt in enumerate(prompts):
            engine._held.prefixes.clear()
            reused = engine.reused_tokens
            (alone,) = run(engine.generate(prompt, sampling(number, step)))
            assert engine.reused_tokens == reused
            assert alone.tokens.tolist() == found[number][step].tokens.tolist()
            assert alone.logprobs.tobytes() == found[number][step].logprobs.tobytes()
            expected = full_logprobs(params, prompt, alone.tokens, sampling(number, step))
            np.testing.assert_allclose(alone.logprobs, expected, atol=1e-4, rtol=0)


def test_new_weights_read_every_prompt_anew(engine, params):
    made = episodes()[:3]
    other = weights(1)
    play(engine, made)
    engine.update_weights(other, 1)
    found = play(engine, made)
    engine.update_weights(params, 0)
    for number, prompts in enumerate(made):
        for step, (prompt, response) in enumerate(zip(prompts, found[number], strict=True)):
            expected = full_logprobs(other, prompt, response.tokens, sampling(number, step))
            np.testing.assert_allclose(response.logprobs, expected, atol=1e-4, rtol=0)


def test_prompts_behind_a_response_of_old_weights_are_read_with_the_new_ones(engine, params):
    other, prompt = weights(1), episodes()[0][0]

    async def update_between() -> list[Completion]:
        first = asyncio.ensure_future(engine.generate(prompt, sampling(0, 0)))
        await asyncio.sleep(0)
        engine.update_weights(other, 1)
        return [await first, await engine.generate(prompt, sampling(0, 1))]

    (found,) = run(update_between())
    engine.update_weights(params, 0)
    for step, (by, response) in enumerate(zip((params, other), found, strict=True)):
        expected = full_logprobs(by, prompt, response.tokens, sampling(0, step))
        np.testing.assert_allclose(response.logprobs, expected, atol=1e-4, rtol=0)
