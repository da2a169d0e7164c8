"""The in-process engine, on a random model of two layers: what it samples, how it shares slots, what it refuses."""

import asyncio
import operator
import random
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.errors import InputError
from gigpo_jax.models import qwen2
from gigpo_jax.sampling.base import SamplingParams, request_key
from gigpo_jax.sampling.jax_engine import EngineSettings, JaxEngine

CONFIG = qwen2.Qwen2Config(
    vocab_size=60,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rope_theta=10_000.0,
    tie_word_embeddings=True,
)
LIMIT_S = 120.0


class Letters:
    """Token i is one character; 59 is the whole of "</b>"."""

    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ</> .,!"

    def encode(self, text: str) -> list[int]:
        return [59] if text == "</b>" else [self.letters.index(letter) for letter in text]

    def decode(self, ids) -> str:
        return "".join("</b>" if token == 59 else self.letters[token] for token in ids)


def weights(seed: int, scale: float = 8.0) -> qwen2.Params:
    """Random parameters, larger than at the start of training so that responses are far from uniform."""
    params = qwen2.init(CONFIG, jax.random.key(seed))
    return jax.tree.map(lambda leaf: leaf * scale if leaf.ndim > 1 else leaf, params)


@pytest.fixture(scope="module")
def params() -> qwen2.Params:
    return weights(0)


@pytest.fixture(scope="module")
def engine(params):
    with JaxEngine(
        CONFIG,
        params,
        EngineSettings(slots=6, max_length=64, prefill_buckets=(16, 48), prefill_rows=(4,), decode_steps=4),
        tokenizer=Letters(),
    ) as engine:
        engine.warmup()
        yield engine


def run(*coroutines):
    async def together():
        return await asyncio.wait_for(asyncio.gather(*coroutines), LIMIT_S)

    return asyncio.run(together())


def held() -> int:
    """Bytes of all arrays."""
    return sum(array.nbytes for array in jax.live_arrays())


def requests(count: int, seed: int = 0) -> list[tuple[list[int], SamplingParams]]:
    """Prompts and settings of all kinds."""
    rng = random.Random(seed)
    made = []
    for index in range(count):
        prompt = [rng.randrange(60) for _ in range(rng.randint(1, 40))]
        settings = SamplingParams(
            temperature=rng.choice([0.0, 0.7, 1.0, 1.0]),
            top_p=rng.choice([1.0, 1.0, 0.9]),
            top_k=rng.choice([-1, -1, 10]),
            max_tokens=rng.randint(1, 20),
            stop_token_ids=rng.choice([(), (5, 6)]),
            key=request_key(seed, 0, 0, 0, index),
        )
        made.append((prompt, settings))
    return made


def full_logprobs(
    params: qwen2.Params, prompt: list[int], response: np.ndarray, settings: SamplingParams
) -> np.ndarray:
    """Log-probabilities [T] of a response by one forward pass over all of it (no top-p, no top-k)."""
    sequence = jnp.asarray([*prompt, *response.tolist()])[None]
    padded = jnp.pad(sequence, ((0, 0), (0, 64 - sequence.shape[1])))
    logits = np.asarray(FULL(params, padded))[0, len(prompt) - 1 :][: len(response)].astype(np.float64)
    logits /= settings.temperature or 1.0
    shifted = logits - logits.max(-1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return logprobs[np.arange(len(response)), response]


FULL = jax.jit(lambda params, tokens: qwen2.logits(CONFIG, params, tokens))


def test_logprobs_are_those_of_the_full_forward_pass(engine, params):
    made = [(p, s) for p, s in requests(40) if s.top_p == 1 and s.top_k == -1]
    responses = run(*(engine.generate(p, s) for p, s in made))
    assert sum(response.tokens.size for response in responses) > 100
    for (prompt, settings), response in zip(made, responses):
        assert response.tokens.dtype == np.int32
        assert response.logprobs.dtype == np.float32
        np.testing.assert_allclose(
            response.logprobs, full_logprobs(params, prompt, response.tokens, settings), atol=1e-4, rtol=0
        )


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
    settings = [SamplingParams(max_tokens=20, key=request_key(0, 0, 0, member, 0)) for member in range(4)]
    responses = run(*(engine.generate([1, 2, 3], each) for each in settings))
    assert len({tuple(response.tokens.tolist()) for response in responses}) == 4


def test_nothing_compiles_after_warmup(engine):
    compiled, count, other = [], engine.compile_count, weights(3)
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if "compile" in name else None
    )
    try:
        run(*(engine.generate(p, s) for p, s in requests(17, seed=3)))
        run(engine.generate([1], SamplingParams(max_tokens=1)))
        engine.update_weights(other, 3)
        run(engine.generate([1] * 48, SamplingParams(max_tokens=16, stop_strings=("</b>",))))
    finally:
        jax.monitoring.clear_event_listeners()
        engine.update_weights(weights(0), 0)
    assert compiled == []
    assert engine.compile_count == count == 2 + 2  # shapes of prompts; decoding, empty cache


def test_max_tokens_is_exact(engine):
    lengths = [1, 2, 3, 4, 5, 8, 9, 15, 16]
    responses = run(*(engine.generate([7] * 48, SamplingParams(max_tokens=n, key=(n, 0))) for n in lengths))
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
        return engine._request([1], SamplingParams(max_tokens=4, stop_strings=("</b>", "xy"))).stop_ids

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
        CONFIG, params, EngineSettings(slots=1, max_length=4000, prefill_buckets=(8,), decode_steps=1)
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
            response = await asyncio.wait_for(engine.generate([3], SamplingParams(max_tokens=2)), LIMIT_S)
            assert endless.cancelled()
            return response, time.monotonic() - start

        response, _ = asyncio.run(main())
        assert response.tokens.size == 2
        assert engine.generated_tokens == 2  # had the others been finished first it would be thousands


@pytest.mark.parametrize("frees", [False, True])
def test_cancelled_requests_keep_no_memory(params, frees, monkeypatch: pytest.MonkeyPatch):
    """One in a slot and one that waits; the engine's thread has not seen yet that they are cancelled."""
    settings = EngineSettings(slots=1, max_length=4000, prefill_buckets=(8,), decode_steps=1, dtype=jnp.bfloat16)
    between_rounds, both_cancelled = threading.Event(), threading.Event()

    def hold() -> None:
        between_rounds.set()
        both_cancelled.wait(LIMIT_S)

    with JaxEngine(CONFIG, params, settings) as engine:
        engine.warmup()
        prepare, left = engine._programs.prepare, []
        monkeypatch.setattr(engine._programs, "prepare", lambda new: left.append(held()) or prepare(new))

        async def main() -> int:
            asked = [asyncio.ensure_future(engine.generate([n], SamplingParams(max_tokens=3900))) for n in (1, 2)]
            while not (engine._active() and engine._waiting):
                await asyncio.sleep(0.01)
            monkeypatch.setattr(engine, "_gather", hold)
            await asyncio.to_thread(between_rounds.wait, LIMIT_S)
            for request in asked:
                request.cancel()
            await asyncio.wait(asked)
            full = held()
            if frees:
                engine.free_memory()
            engine.update_weights(params, 1)
            both_cancelled.set()
            assert all(request.cancelled() for request in asked)
            return full - left[0]

        own = 2 * sum(leaf.size for leaf in jax.tree.leaves(params))
        cache = 2 * 2 * 2 * 4000 * 8 * 4  # keys and values, layers, heads, tokens, numbers, bytes
        (freed,) = run(main())
        assert freed >= own + (cache if frees else 0)
        (response,) = run(engine.generate([3], SamplingParams(max_tokens=2)))
    assert (response.tokens.size, response.version) == (2, 1)


def test_weights_never_mix(params):
    other = weights(1)
    prompt, settings = [1, 2, 3], SamplingParams(max_tokens=40, key=(9, 9))
    with JaxEngine(
        CONFIG, params, EngineSettings(slots=4, max_length=64, prefill_buckets=(8,), decode_steps=1), version=7
    ) as engine:
        engine.warmup()

        async def main():
            before = [asyncio.ensure_future(engine.generate(prompt, settings)) for _ in range(6)]
            await asyncio.sleep(0)  # all six have asked
            engine.update_weights(other, 8)
            after = [asyncio.ensure_future(engine.generate(prompt, settings)) for _ in range(6)]
            return await asyncio.wait_for(asyncio.gather(*before, *after), LIMIT_S)

        responses = asyncio.run(main())
    assert [response.version for response in responses] == [7] * 6 + [8] * 6
    for response, used in zip(responses, [params] * 6 + [other] * 6):
        np.testing.assert_allclose(
            response.logprobs, full_logprobs(used, prompt, response.tokens, settings), atol=1e-4, rtol=0
        )


def test_weights_are_not_copied_and_must_have_the_same_shape(params):
    with JaxEngine(CONFIG, params, EngineSettings(slots=2, max_length=16)) as engine:
        assert all(map(operator.is_, *map(jax.tree.leaves, (engine._newest.params, params))))
        with pytest.raises(ValueError, match=r"version 2: .*\['embed'\] is float32\[3\], was float32\[60, 32\]"):
            engine.update_weights(params | {"embed": jnp.zeros(3)}, 2)


def test_parameters_in_float32_computed_in_bfloat16(params):
    with JaxEngine(
        CONFIG, params, EngineSettings(slots=2, max_length=64, prefill_buckets=(16,), dtype=jnp.bfloat16)
    ) as engine:
        settings = SamplingParams(max_tokens=20, temperature=1.0)
        (response,) = run(engine.generate([1, 2, 3], settings))
        compiled = engine._programs._compiled.items()
        programs = "".join(program.as_text() for name, program in compiled if name != "gather")
    # XLA's CPU backend takes and writes parts of bfloat16 arrays by way of a copy of all of them in float32.
    kernels, cache = "[2,32,48]", "[2,2,2,64,8]"
    assert f"u16{kernels}" in programs
    assert f"f32{kernels}" not in programs
    assert f"f32{cache}" in programs
    assert f"bf16{cache}" not in programs
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    assert np.abs(response.logprobs - full_logprobs(half, [1, 2, 3], response.tokens, settings)).mean() < 0.2


def test_freed_memory_comes_back_with_the_next_weights(params, monkeypatch: pytest.MonkeyPatch):
    settings = EngineSettings(
        slots=2, max_length=64, prefill_buckets=(16,), prefill_rows=(1,), dtype=jnp.dtype("bfloat16")
    )

    with JaxEngine(CONFIG, params, settings) as engine:
        request = [1, 2, 3], SamplingParams(max_tokens=20, key=(1, 2))
        (before,) = run(engine.generate(*request))
        cache = 2 * 2 * 2 * 2 * 64 * 8 * 4  # keys and values, layers, slots, heads, tokens, numbers, bytes
        own, full = 2 * sum(leaf.size for leaf in jax.tree.leaves(params)), held()

        async def left_over() -> None:
            late = asyncio.ensure_future(engine.generate(*request))
            await asyncio.sleep(0)
            engine.free_memory()
            held_up.set()
            with pytest.raises(RuntimeError, match="frees its memory"):
                await late

        held_up = threading.Event()
        monkeypatch.setattr(engine, "_gather", held_up.wait)
        run(left_over())
        assert full - held() >= cache + own
        with pytest.raises(RuntimeError, match="no weights during an update"):
            run(engine.generate(*request))
        engine.update_weights(params, 1)
        (after,) = run(engine.generate(*request))
    assert (after.tokens.tolist(), after.version) == (before.tokens.tolist(), 1)
    np.testing.assert_array_equal(after.logprobs, before.logprobs)


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        ([1] * 45, {"max_tokens": 20}, "prompt of 45 tokens: .*max_tokens=20 .*max_length=64 .*1 to 44"),
        ([1] * 49, {"max_tokens": 2}, "1 to 48"),
        ([], {"max_tokens": 2}, "prompt of 0 tokens"),
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
    engine = JaxEngine(CONFIG, params, EngineSettings(slots=1, max_length=4000, prefill_buckets=(8,), decode_steps=1))
    engine.warmup()

    async def main():
        waiting = [asyncio.ensure_future(engine.generate([1], SamplingParams(max_tokens=3900))) for _ in range(3)]
        await asyncio.sleep(0.05)
        engine.close()
        engine.close()
        responses = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), LIMIT_S)
        late = await asyncio.gather(engine.generate([1], SamplingParams(max_tokens=1)), return_exceptions=True)
        return responses + late

    errors = asyncio.run(main())
    assert [type(error) for error in errors] == [RuntimeError] * 4
    assert {str(error) for error in errors} == {"the engine was closed", "the engine is closed"}


def test_weights_that_were_donated_fail_the_request_and_new_ones_serve_again(params):
    with JaxEngine(CONFIG, weights(0), EngineSettings(slots=2, max_length=32, prefill_buckets=(8,))) as engine:
        engine.warmup()
        for leaf in jax.tree.leaves(engine._newest.params):
            leaf.delete()
        (error,) = run(_outcome(engine.generate([1], SamplingParams(max_tokens=4))))
        assert isinstance(error, RuntimeError)
        assert "deleted" in str(error)
        engine.update_weights(params, 1)
        (response,) = run(engine.generate([1], SamplingParams(max_tokens=4)))
        assert (response.version, response.tokens.size) == (1, 4)


async def _outcome(coroutine):
    return (await asyncio.gather(coroutine, return_exceptions=True))[0]


def test_environments_go_on_while_the_device_works(engine):
    async def main():
        ticks, working = 0, asyncio.gather(*(engine.generate(p, s) for p, s in requests(30, seed=5)))
        while not working.done():
            await asyncio.sleep(0.001)
            ticks += 1
        return ticks

    assert asyncio.run(main()) > 5
