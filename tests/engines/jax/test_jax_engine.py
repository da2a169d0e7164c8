"""The in-process engine, on a random model of two layers: what it samples, how it shares slots,
what it refuses.
"""

import asyncio
import dataclasses
import random
import time

import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import SamplingParams, request_key
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.models import decoder
from tests.compilation import record_events
from tests.engines.jax.random_model import (
    CONFIG,
    FULL,
    LIMIT_S,
    Letters,
    full_distributions,
    full_logprobs,
    requests,
    run,
    weights,
)


@pytest.fixture(scope="module")
def params() -> decoder.Params:
    return weights(0)


@pytest.fixture(scope="module")
def engine(params):
    with JaxEngine(
        CONFIG,
        params,
        EngineSettings(
            slots=6, max_length=64, prefill_buckets=(16, 48), prefill_rows=(4,), decode_steps=4
        ),
        tokenizer=Letters(),
    ) as engine:
        engine.warmup()
        yield engine


def test_logprobs_are_those_of_the_full_forward_pass(engine, params):
    made = [(p, s) for p, s in requests(40) if s.top_p == 1 and s.top_k == -1]
    responses = run(*(engine.generate(p, s) for p, s in made))
    assert sum(response.tokens.size for response in responses) > 100
    for (prompt, settings), response in zip(made, responses):
        assert response.tokens.dtype == np.int32
        assert response.logprobs.dtype == np.float32
        np.testing.assert_allclose(
            response.logprobs,
            full_logprobs(params, prompt, response.tokens, settings),
            atol=1e-4,
            rtol=0,
        )


@pytest.mark.parametrize("chunk", [pytest.param(0, marks=pytest.mark.slow), 16])
def test_entropies_are_those_of_the_full_forward_pass(params, chunk: int):
    made = [(p, s) for p, s in requests(24) if s.top_p == 1 and s.top_k == -1]
    plain_settings = EngineSettings(
        slots=6,
        max_length=64,
        prefill_buckets=() if chunk else (48,),
        prefill_rows=(4,),
        prefill_chunk=chunk,
        decode_steps=4,
    )
    found = []
    for keeps_entropies in (False, True):
        settings = dataclasses.replace(plain_settings, keeps_entropies=keeps_entropies)
        with JaxEngine(CONFIG, params, settings, tokenizer=Letters()) as engine:
            found.append(run(*(engine.generate(p, s) for p, s in made)))
    for (prompt, settings), plain, response in zip(made, *found, strict=True):
        assert plain.entropies is None
        np.testing.assert_array_equal(response.tokens, plain.tokens)
        np.testing.assert_array_equal(response.logprobs, plain.logprobs)
        logprobs = full_distributions(params, prompt, response.tokens, settings)
        entropies = -np.sum(np.exp(logprobs) * logprobs, -1)
        assert response.entropies.dtype == np.float32
        np.testing.assert_allclose(response.entropies, entropies, atol=2e-4, rtol=0)
    assert max(response.entropies.max() for response in found[1]) > 0.1


def test_greedy_responses_are_the_argmax_of_the_full_forward_pass(engine, params):
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    (response,) = run(engine.generate(prompt, SamplingParams(temperature=0.0, max_tokens=12)))
    sequence = list(prompt)
    for token in response.tokens:
        padded = jnp.asarray(sequence + [0] * (64 - len(sequence)))[None]
        assert token == np.argmax(np.asarray(FULL(params, padded))[0, len(sequence) - 1])
        sequence.append(int(token))
    assert response.finish_reason == "length"
    assert response.tokens.size == 12


def test_the_same_request_gives_the_same_response_in_any_company(engine):
    made = requests(23, seed=1)  # many more than slots
    together = run(*(engine.generate(p, s) for p, s in made))
    alone = [run(engine.generate(p, s))[0] for p, s in made]
    order = list(range(len(made)))
    random.Random(2).shuffle(order)
    shuffled = dict(zip(order, run(*(engine.generate(*made[index]) for index in order))))
    for index in range(len(made)):
        for other in (alone[index], shuffled[index]):
            assert other.tokens.tolist() == together[index].tokens.tolist()
            assert other.finish_reason == together[index].finish_reason
            np.testing.assert_allclose(other.logprobs, together[index].logprobs, atol=1e-5, rtol=0)


def test_another_key_gives_another_response(engine):
    settings = [
        SamplingParams(max_tokens=20, key=request_key(0, 0, 0, member, 0)) for member in range(4)
    ]
    responses = run(*(engine.generate([1, 2, 3], each) for each in settings))
    assert len({tuple(response.tokens.tolist()) for response in responses}) == 4


def test_nothing_compiles_after_warmup(engine):
    other = weights(3)
    try:
        # Requests with top-p and top-k have programs of their own, from the first one on.
        run(engine.generate([1], SamplingParams(max_tokens=2, top_p=0.9)))
        for length in (1, 48):
            run(engine.generate([1] * length, SamplingParams(max_tokens=2)))
        count = engine.compile_count
        with record_events() as events:
            run(*(engine.generate(p, s) for p, s in requests(17, seed=3)))
            run(engine.generate([1], SamplingParams(max_tokens=1)))
            engine.update_weights(other, 3)
            run(engine.generate([1] * 48, SamplingParams(max_tokens=16, stop_strings=("</b>",))))
    finally:
        engine.update_weights(weights(0), 0)
    assert [name for name in events if "compile" in name] == []
    # Shapes of prompts and decoding, twice; the empty cache.
    assert engine.compile_count == count == 2 * (2 + 1) + 1


def test_max_tokens_is_exact(engine):
    lengths = [1, 2, 3, 4, 5, 8, 9, 15, 16]
    responses = run(
        *(engine.generate([7] * 48, SamplingParams(max_tokens=n, key=(n, 0))) for n in lengths)
    )
    assert [response.tokens.size for response in responses] == lengths
    assert [response.logprobs.size for response in responses] == lengths
    assert {response.finish_reason for response in responses} == {"length"}


def plain(engine, prompt, *, key, max_tokens=30) -> list[int]:
    (response,) = run(engine.generate(prompt, SamplingParams(max_tokens=max_tokens, key=key)))
    return response.tokens.tolist()


def test_a_stop_token_ends_the_response_and_belongs_to_it(engine):
    tokens = plain(engine, [1, 2], key=(5, 5))
    for index in (0, 1, 6):
        stop = tokens[index]
        first = tokens.index(stop)
        settings = SamplingParams(max_tokens=30, key=(5, 5), stop_token_ids=(58, stop))
        (response,) = run(engine.generate([1, 2], settings))
        assert response.tokens.tolist() == tokens[: first + 1]
        assert response.finish_reason == "stop"


def test_a_stop_string_over_several_tokens_ends_the_response_where_it_is_complete(engine):
    tokens = plain(engine, [1, 2], key=(6, 6))
    text = Letters().decode(tokens)
    for start in (0, 3, 10):
        stop = text[start : start + 3]
        end = text.index(stop) + 3
        settings = SamplingParams(max_tokens=30, key=(6, 6), stop_strings=("absent", stop))
        (response,) = run(engine.generate([1, 2], settings))
        assert "</b>" not in text[:end]  # then characters and tokens have the same indices
        assert response.tokens.tolist() == tokens[:end]
        assert response.logprobs.size == end
        assert response.finish_reason == "stop"


def test_a_stop_string_that_is_one_token_stops_on_the_device(engine):
    async def stop_ids():
        return engine._make_request(
            [1], SamplingParams(max_tokens=4, stop_strings=("</b>", "xy")), None, None
        ).stop_ids

    assert run(stop_ids()) == [[59]]


def test_more_requests_than_slots_all_finish_and_free_slots_are_used_at_once(engine):
    # Slots are taken by long responses; short ones go through the sixth slot meanwhile.
    async def main():
        done = []

        async def one(name, max_tokens):
            response = await engine.generate([1], SamplingParams(max_tokens=max_tokens, key=(1, 1)))
            done.append(name)
            return response.tokens.size

        long = [asyncio.ensure_future(one("long", 60)) for _ in range(5)]
        short = [asyncio.ensure_future(one("short", 3)) for _ in range(8)]
        sizes = await asyncio.wait_for(asyncio.gather(*long, *short), LIMIT_S)
        return done, sizes

    done, sizes = asyncio.run(main())
    assert sizes == [60] * 5 + [3] * 8
    assert done[:8] == ["short"] * 8


def test_a_cancelled_request_frees_its_slot(params):
    with JaxEngine(
        CONFIG,
        params,
        EngineSettings(slots=1, max_length=4000, prefill_buckets=(8,), decode_steps=1),
    ) as engine:
        engine.warmup()

        async def main():
            endless = asyncio.ensure_future(engine.generate([1], SamplingParams(max_tokens=3900)))
            waiting = asyncio.ensure_future(engine.generate([2], SamplingParams(max_tokens=3900)))
            await asyncio.sleep(0.2)
            assert not endless.done()
            endless.cancel()
            waiting.cancel()
            start = time.monotonic()
            response = await asyncio.wait_for(
                engine.generate([3], SamplingParams(max_tokens=2)), LIMIT_S
            )
            assert endless.cancelled()
            return response, time.monotonic() - start

        response, _ = asyncio.run(main())
        assert response.tokens.size == 2
        assert (
            engine.generated_tokens == 2
        )  # had the others been finished first it would be thousands


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        (
            [1] * 45,
            {"max_tokens": 20},
            "prompt: 45 tokens; .*max_tokens=20 .*max_length=64 .*1 to 44",
        ),
        ([1] * 49, {"max_tokens": 2}, "1 to 48"),
        ([], {"max_tokens": 2}, "prompt: 0 tokens"),
        ([1], {"max_tokens": 100}, "1 to 0"),
        ([1, 60], {"max_tokens": 2}, "token id 60.*0 to 59"),
        ([1], {"max_tokens": 2, "stop_token_ids": tuple(range(20))}, "stop_token_ids"),
    ],
)
def test_a_request_that_does_not_fit_fails_alone(engine, prompt, settings, message):
    async def main():
        return await asyncio.gather(
            engine.generate(prompt, SamplingParams(**settings)),
            engine.generate([1], SamplingParams(max_tokens=3)),
            return_exceptions=True,
        )

    refused, fine = asyncio.run(main())
    assert fine.tokens.size == 3
    with pytest.raises(InputError, match=message):
        raise refused


def test_closing_fails_those_who_wait(params):
    engine = JaxEngine(
        CONFIG,
        params,
        EngineSettings(slots=1, max_length=4000, prefill_buckets=(8,), decode_steps=1),
    )
    engine.warmup()

    async def main():
        waiting = [
            asyncio.ensure_future(engine.generate([1], SamplingParams(max_tokens=3900)))
            for _ in range(3)
        ]
        await asyncio.sleep(0.05)
        engine.close()
        engine.close()
        responses = await asyncio.wait_for(
            asyncio.gather(*waiting, return_exceptions=True), LIMIT_S
        )
        late = await asyncio.gather(
            engine.generate([1], SamplingParams(max_tokens=1)), return_exceptions=True
        )
        return responses + late

    errors = asyncio.run(main())
    assert [type(error) for error in errors] == [RuntimeError] * 4
    assert {str(error) for error in errors} == {"the engine was closed", "the engine is closed"}


@pytest.mark.slow
def test_environments_go_on_while_the_device_works(engine):
    async def main():
        ticks = 0
        working = asyncio.gather(*(engine.generate(p, s) for p, s in requests(30, seed=5)))
        while not working.done():
            await asyncio.sleep(0.001)
            ticks += 1
        return ticks

    assert asyncio.run(main()) > 5
