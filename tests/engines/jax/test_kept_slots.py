"""Conversations continue in their slots: which slots wait, what is read, and equal responses.

The responses equal the responses to prompts that are read again.
"""

import asyncio
import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.engines.base import Completion, SamplingParams, request_key
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.engines.jax.kept_slots import KeptSlots
from gigpo_jax.models import decoder
from tests.engines.jax.random_model import CONFIG, Letters, outcome, run, weights

CHUNK = 16
# Of weights: with larger ones the rounding of log-probabilities exceeds 1e-5.
SCALE = 5.0
READ_AGAIN = EngineSettings(
    slots=4, max_length=400, prefill_rows=(4,), prefill_chunk=CHUNK, decode_steps=4
)
KEEP = dataclasses.replace(READ_AGAIN, keep_responses=True)


def test_a_prompt_continues_the_longest_slot_of_its_session() -> None:
    kept = KeptSlots(CHUNK, 384)
    prompt = np.arange(20, dtype=np.int32)
    kept.keep(0, prompt[:5], (1, 1))
    kept.keep(1, prompt[:9], (1, 1))
    kept.keep(2, prompt[:9] + 1, (1, 1))
    kept.keep(3, prompt[:12], (2, 1))
    assert kept.take_continued(prompt, None) is None
    assert kept.take_continued(prompt, (1, 1)) == (1, 9)
    kept.keep(1, prompt[:9], (1, 1))
    assert kept.take_continued(prompt[:9], (1, 1)) == (0, 5)  # one token at least is read
    assert kept.take_continued(prompt, (1, 1)) == (1, 9)
    assert kept.take_continued(prompt, (1, 1)) is None
    assert kept.take_continued(prompt + 1, (1, 1)) == (2, 9)
    assert kept.take_continued(prompt, (2, 1)) == (3, 12)
    assert not kept._slots
    for slot in (4, 5):
        kept.keep(slot, prompt[:5], None)
    assert {kept.take_continued(prompt, None) for _ in range(3)} == {(4, 5), (5, 5), None}


def test_slots_that_went_on_elsewhere_are_given_up_first_then_those_that_wait_longest() -> None:
    kept = KeptSlots(CHUNK, 384)
    prompt = np.arange(20, dtype=np.int32)
    for slot, session in enumerate([None, (1, 1), (2, 1), (1, 1), (3, 1)]):
        kept.keep(slot, prompt[: slot + 1] + slot, session)
    assert kept.offer_slots([0, 1, 2, 3, 4, 7, 9]) == [7, 9]
    assert kept.take_continued(prompt + 3, (1, 1)) == (3, 4)
    free_slots = [0, 1, 2, 4]
    for expected in (1, 0, 2, 4):
        assert kept.offer_slots(free_slots) == [expected]
        kept.give_up(expected)
        free_slots.remove(expected)
    assert kept.given_up == 3
    kept.give_up(9)
    kept.keep(5, prompt, (4, 1))
    kept.keep(6, prompt, (4, 1))
    kept.end_session((4, 1))
    assert kept.offer_slots([5, 6]) == [5, 6]
    kept.end_session((4, 1))
    assert kept.given_up == 3
    # Slot 1 has a new conversation.
    kept.keep(1, prompt, None)
    kept.give_up(1)
    assert kept.given_up == 4
    assert not kept._slots


@dataclass(frozen=True)
class Call:
    prompt: list[int]
    params: SamplingParams
    completion: Completion


def draw_tokens(rng: random.Random, least: int, most: int) -> list[int]:
    return [rng.randrange(60) for _ in range(rng.randint(least, most))]


async def talk(
    engine: JaxEngine,
    number: int,
    *,
    turns: int = 6,
    messages: tuple[int, int] = (1, 30),
    temperature: float = 0.0,
    pause: Callable[[], float] = lambda: 0.0,
) -> list[Call]:
    """An episode: each prompt is the one before, its response, and a message.

    One in six begins again, as a conversation whose oldest messages are dropped.
    """
    rng = random.Random(number)
    prompt = draw_tokens(rng, *messages)
    calls: list[Call] = []
    for turn in range(turns):
        params = SamplingParams(
            temperature=temperature,
            max_tokens=rng.randint(1, 12),
            stop_token_ids=(5, 6),
            key=request_key(0, 0, 0, number, turn),
            session=(number, 7),
        )
        completion = await engine.generate(prompt, params)
        calls.append(Call(prompt, params, completion))
        await asyncio.sleep(pause())
        past = [*prompt, *completion.tokens.tolist()] if rng.randrange(6) else []
        prompt = past + draw_tokens(rng, *messages)
    engine.end_session((number, 7))
    return calls


def check_calls(engine: JaxEngine, calls: list[Call]) -> None:
    """The same requests give an engine that reads again the same tokens."""
    again = run(*(engine.generate(call.prompt, call.params) for call in calls))
    for call, completion in zip(calls, again, strict=True):
        assert call.completion.tokens.tolist() == completion.tokens.tolist()
        np.testing.assert_allclose(call.completion.logprobs, completion.logprobs, atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def params() -> decoder.Params:
    return weights(0, SCALE)


@pytest.fixture(scope="module")
def reader(params):
    with JaxEngine(CONFIG, params, READ_AGAIN, tokenizer=Letters()) as engine:
        yield engine


@pytest.fixture(scope="module")
def started(params):
    with JaxEngine(CONFIG, params, KEEP, tokenizer=Letters()) as engine:
        engine.warmup()
        yield engine


@pytest.fixture
def engine(started, params):
    """An engine that holds nothing; all tests share its programs."""
    started.update_weights(params, 0)
    started._held.kept.given_up = 0
    started.prompt_tokens = 0
    started.reused_tokens = 0
    return started


def read_tokens(engine: JaxEngine) -> int:
    return engine.prompt_tokens - engine.reused_tokens


@pytest.mark.parametrize("seed", range(2))
def test_conversations_in_any_order_are_those_that_are_read_again(engine, reader, params, seed):
    """More of them than slots, and new weights on the way."""
    rng = random.Random(seed)
    other = weights(1, SCALE)

    async def update() -> list[Call]:
        # Conversations of both versions: some have begun, and none has ended.
        start = engine.generated_tokens
        while engine.generated_tokens < start + 20:
            await asyncio.sleep(0.001)
        engine.update_weights(other, 1)
        return []

    def pause() -> float:
        return rng.random() * 0.01

    talks = [talk(engine, 100 * seed + number, pause=pause) for number in range(9)]
    calls = [call for calls in run(*talks, update()) for call in calls]
    assert engine._held.kept.given_up > 0
    by_version = {0: [], 1: []}
    for call in calls:
        by_version[call.completion.version].append(call)
    assert all(by_version.values())
    check_calls(reader, by_version[0])
    reader.update_weights(other, 1)
    check_calls(reader, by_version[1])
    reader.update_weights(params, 0)


def test_each_token_of_a_conversation_is_read_or_decoded_once(engine, reader):
    talks = run(*(talk(engine, number, messages=(22, 26), turns=9) for number in range(4)))
    new_tokens = 0
    last_tokens = 0
    for calls in talks:
        past: list[int] = []
        for call in calls:
            continues = call.prompt[: len(past)] == past
            new_tokens += len(call.prompt) - continues * len(past)
            # The last token of a response was never an input of the model.
            last_tokens += continues and bool(past)
            past = [*call.prompt, *call.completion.tokens.tolist()]
    assert read_tokens(engine) == new_tokens + last_tokens <= 1.05 * new_tokens
    assert engine._held.kept.given_up == 0
    check_calls(reader, [call for calls in talks for call in calls])


def test_a_conversation_has_the_same_bits_in_any_company(engine):
    check_company(engine)


@pytest.mark.slow
def test_a_conversation_has_the_same_bits_in_any_company_in_bfloat16(params):
    with JaxEngine(CONFIG, params, dataclasses.replace(KEEP, dtype=jnp.bfloat16)) as engine:
        check_company(engine)


def check_company(engine: JaxEngine) -> None:
    """As many at once as there are slots, and each alone; those that end make room for others."""
    rng = random.Random(0)
    places = asyncio.Semaphore(engine.slots)

    async def episode(number: int) -> list[Call]:
        async with places:
            return await talk(engine, number, temperature=1.0, pause=lambda: rng.random() * 0.005)

    engine.warmup()
    count = engine.compile_count
    company = run(*map(episode, range(10)))
    alone = [run(talk(engine, number, temperature=1.0))[0] for number in range(10)]
    assert engine.compile_count == count
    assert engine._held.kept.given_up == 0
    for calls, others in zip(company, alone, strict=True):
        for call, other in zip(calls, others, strict=True):
            assert call.completion.tokens.tolist() == other.completion.tokens.tolist()
            assert call.completion.logprobs.tobytes() == other.completion.logprobs.tobytes()


def test_a_response_that_a_stop_string_ended_is_continued_there(engine, reader):
    prompt = list(range(20))
    plain = SamplingParams(temperature=1.0, max_tokens=30, key=(6, 6), session=(1, 1))
    (response,) = run(engine.generate(prompt, plain))
    text = Letters().decode(response.tokens.tolist())
    for start in (1, 2, 3):  # somewhere in the 4 tokens of a device call
        params = dataclasses.replace(plain, stop_strings=(text[start : start + 3],))
        (response,) = run(engine.generate(prompt, params))
        assert response.tokens.size == start + 3
        before = read_tokens(engine)
        longer = [*prompt, *response.tokens.tolist(), 1, 2, 3]
        params = dataclasses.replace(params, temperature=0.0)
        (after,) = run(engine.generate(longer, params))
        assert read_tokens(engine) - before == 1 + 3
        check_calls(reader, [Call(longer, params, after)])


def test_a_prompt_whose_last_chunk_would_end_behind_the_cache_is_read_anew(params, reader):
    settings = dataclasses.replace(KEEP, max_length=63)
    with JaxEngine(CONFIG, params, settings) as engine:
        calls = []
        # The kept tokens end at 40, 45 and 49; the last chunk of a cache of 64 begins at 48, and
        # the first prompt has two whole chunks.
        for length, reused in ((1, 32), (6, 45), (10, 32)):
            first = SamplingParams(temperature=0.0, max_tokens=length, session=(length, 1))
            prompt = [length, *range(39)]
            (response,) = run(engine.generate(prompt, first))
            longer = [*prompt, *response.tokens.tolist(), *range(20 - length)]
            last = dataclasses.replace(first, max_tokens=3)
            before = engine.reused_tokens
            (after,) = run(engine.generate(longer, last))
            assert engine.reused_tokens - before == reused
            calls.append(Call(longer, last, after))
    check_calls(reader, calls)


def test_requests_without_a_response_leave_nothing(engine, reader, params):
    """Cancelled requests, and requests to an engine that failed or gave its memory away."""
    prompt = list(range(40, 60))
    endless = SamplingParams(temperature=0.0, max_tokens=300, session=(1, 1))
    short = dataclasses.replace(endless, max_tokens=8)

    async def cancel() -> list[int]:
        reports: list[list[int]] = []
        request = asyncio.ensure_future(engine.generate(prompt, endless, on_tokens=reports.append))
        while not reports:
            await asyncio.sleep(0.001)
        request.cancel()
        await asyncio.wait([request])
        return reports[0]

    (tokens,) = run(cancel())
    calls = []

    def go_on(call: Call | None, tokens: list[int], continues: bool) -> Call:
        longer = [*(call.prompt if call else prompt), *tokens, 7, 8, 9]
        before = engine.reused_tokens
        (completion,) = run(engine.generate(longer, short))
        whole_chunks = len(prompt) // CHUNK * CHUNK
        held = len(longer) - 4 if continues else whole_chunks if call is None else 0
        assert engine.reused_tokens - before == held
        calls.append(Call(longer, short, completion))
        return calls[-1]

    call = go_on(None, tokens, continues=False)
    call = go_on(call, call.completion.tokens.tolist(), continues=True)
    engine.free_memory()
    engine.update_weights(params, 1)
    call = go_on(call, call.completion.tokens.tolist(), continues=False)
    engine.update_weights(weights(0, SCALE), 2)
    call = go_on(call, call.completion.tokens.tolist(), continues=False)
    for leaf in jax.tree.leaves(engine._newest.params):
        leaf.delete()
    longer = [*call.prompt, *call.completion.tokens.tolist(), 1]
    (error,) = run(outcome(engine.generate(longer, short)))
    assert isinstance(error, RuntimeError)
    engine.update_weights(params, 3)
    call = go_on(call, call.completion.tokens.tolist(), continues=False)
    check_calls(reader, calls)


def test_a_session_does_not_continue_what_another_one_decoded(engine):
    prompt = list(range(20))
    params = SamplingParams(temperature=0.0, max_tokens=8, session=(1, 1))
    (first,) = run(engine.generate(prompt, params))
    longer = [*prompt, *first.tokens.tolist(), 1, 2]
    before = engine.reused_tokens
    run(engine.generate(longer, dataclasses.replace(params, session=(2, 1))))
    assert engine.reused_tokens - before == CHUNK
    before = engine.reused_tokens
    run(engine.generate(longer, params))
    assert engine.reused_tokens - before == len(longer) - 3


def test_a_prompt_of_the_same_round_takes_no_slot_that_another_one_continues(engine):
    """The new prompt comes first, and the slot of session 0 waits longest."""
    params = SamplingParams(temperature=0.0, max_tokens=4)
    responses = []
    for number in range(4):
        own = dataclasses.replace(params, session=(number, 0))
        responses += run(engine.generate([number] * 9, own))
    longer = [*[0] * 9, *responses[0].tokens.tolist(), 1]
    new = engine.generate([9] * 9, dataclasses.replace(params, session=(9, 0)))
    run(new, engine.generate(longer, dataclasses.replace(params, session=(0, 0))))
    assert engine.reused_tokens == len(longer) - 2
    assert engine._held.kept.given_up == 1
    assert set(engine._held.kept._slots) == {(0, 0), (2, 0), (3, 0), (9, 0)}


def test_a_response_whose_caller_has_gone_is_not_kept(engine, monkeypatch):
    decode = engine._decode

    def cancel_then_decode(target: int) -> jax.Array:
        for request in engine._table.requests:
            if request is not None:
                request.future.cancel()
        return decode(target)

    monkeypatch.setattr(engine, "_decode", cancel_then_decode)
    params = SamplingParams(temperature=0.0, max_tokens=3, session=(1, 1))
    with pytest.raises(asyncio.CancelledError):
        run(engine.generate([1, 2, 3], params))
    assert not engine._held.kept._slots
    monkeypatch.undo()
    run(engine.generate([1, 2, 3], params))
    assert list(engine._held.kept._slots) == [(1, 1)]
