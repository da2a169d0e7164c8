"""The weights of the in-process engine: which a response has, and what memory they and the cache
take.
"""

import asyncio
import operator
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.models import decoder
from tests.engines.jax.random_model import CONFIG, LIMIT_S, full_logprobs, outcome, run, weights


@pytest.fixture(scope="module")
def params() -> decoder.Params:
    return weights(0)


def held() -> int:
    """Bytes of all arrays."""
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.mark.slow
@pytest.mark.parametrize("frees", [False, True])
def test_cancelled_requests_keep_no_memory(params, frees, monkeypatch: pytest.MonkeyPatch):
    """One in a slot and one that waits; the engine's thread has not seen yet that they are
    cancelled.
    """
    settings = EngineSettings(
        slots=1, max_length=4000, prefill_buckets=(8,), decode_steps=1, dtype=jnp.bfloat16
    )
    between_rounds = threading.Event()
    both_cancelled = threading.Event()

    def hold() -> None:
        between_rounds.set()
        both_cancelled.wait(LIMIT_S)

    with JaxEngine(CONFIG, params, settings) as engine:
        engine.warmup()
        prepare = engine._programs.prepare_params
        left = []
        monkeypatch.setattr(
            engine._programs, "prepare_params", lambda new: left.append(held()) or prepare(new)
        )

        async def main() -> int:
            asked = [
                asyncio.ensure_future(engine.generate([n], SamplingParams(max_tokens=3900)))
                for n in (1, 2)
            ]
            while not (engine._table.any_active() and engine._waiting):
                await asyncio.sleep(0.01)
            monkeypatch.setattr(engine, "_gather_requests", hold)
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
        cache = 2 * 2 * 2 * 4000 * 8 * 2  # keys and values, layers, heads, tokens, numbers, bytes
        (freed,) = run(main())
        assert freed >= own + (cache if frees else 0)
        (response,) = run(engine.generate([3], SamplingParams(max_tokens=2)))
    assert (response.tokens.size, response.version) == (2, 1)


def test_a_snapshot_keeps_its_weights_and_is_of_some(params):
    request = [1, 2, 3], SamplingParams(max_tokens=2)
    with JaxEngine(
        CONFIG,
        params,
        EngineSettings(slots=2, max_length=32, prefill_buckets=(8,), decode_steps=1),
        version=7,
    ) as engine:
        before = engine.snapshot()
        engine.update_weights(weights(1), 8)
        assert [
            found.version for found in run(before.generate(*request), engine.generate(*request))
        ] == [7, 8]
        engine.free_memory()
        with pytest.raises(AssertionError):
            engine.snapshot()


def test_weights_never_mix(params):
    other = weights(1)
    prompt = [1, 2, 3]
    settings = SamplingParams(max_tokens=40, key=(9, 9))
    with JaxEngine(
        CONFIG,
        params,
        EngineSettings(slots=4, max_length=64, prefill_buckets=(8,), decode_steps=1),
        version=7,
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
            response.logprobs,
            full_logprobs(used, prompt, response.tokens, settings),
            atol=1e-4,
            rtol=0,
        )


def test_weights_are_not_copied_and_must_have_the_same_shape(params):
    with JaxEngine(CONFIG, params, EngineSettings(slots=2, max_length=16)) as engine:
        assert all(map(operator.is_, *map(jax.tree.leaves, (engine._newest.params, params))))
        with pytest.raises(
            ValueError, match=r"version 2: .*\['embed'\] is float32\[3\], was float32\[60, 32\]"
        ):
            engine.update_weights(params | {"embed": jnp.zeros(3)}, 2)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [0, 2])
def test_parameters_in_float32_computed_in_bfloat16(params, chunk: int):
    settings = EngineSettings(
        slots=2,
        max_length=64,
        prefill_buckets=(20,),
        prefill_chunk=chunk,
        prefill_rows=(2,),
        dtype=jnp.bfloat16,
    )
    with JaxEngine(CONFIG, params, settings) as engine:
        settings = SamplingParams(max_tokens=20, temperature=1.0)
        (response,) = run(engine.generate([1, 2, 3], settings))
        compiled = engine._programs._compiled.items()
        texts = [
            program.as_text()
            for name, program in compiled
            if name[0] not in ("hand-over", "layers apart")
        ]
    assert max(text.count(" cosine(") for text in texts) == 1  # not in every layer
    programs = "".join(texts)
    # XLA's CPU backend takes and writes parts of bfloat16 arrays by way of a copy of all of them in
    # float32.
    kernel = "[48,32]"
    cache = "[2,2,2,64,8]"
    assert f"bf16{kernel}" in programs
    assert f"f32{kernel}" not in programs
    assert f"u16{cache}" in programs
    assert f"f32{cache}" not in programs
    assert f"bf16{cache}" not in programs
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    assert (
        np.abs(response.logprobs - full_logprobs(half, [1, 2, 3], response.tokens, settings)).mean()
        < 0.2
    )


def test_freed_memory_comes_back_with_the_next_weights(params, monkeypatch: pytest.MonkeyPatch):
    settings = EngineSettings(
        slots=2,
        max_length=64,
        prefill_buckets=(16,),
        prefill_rows=(1,),
        dtype=jnp.dtype("bfloat16"),
    )

    with JaxEngine(CONFIG, params, settings) as engine:
        request = [1, 2, 3], SamplingParams(max_tokens=20, key=(1, 2))
        (before,) = run(engine.generate(*request))
        cache = (
            2 * 2 * 2 * 2 * 64 * 8 * 2
        )  # keys and values, layers, slots, heads, tokens, numbers, bytes
        own = 2 * sum(leaf.size for leaf in jax.tree.leaves(params))
        full = held()

        async def left_over() -> None:
            late = asyncio.ensure_future(engine.generate(*request))
            await asyncio.sleep(0)
            engine.free_memory()
            held_up.set()
            with pytest.raises(RuntimeError, match="frees its memory"):
                await late

        held_up = threading.Event()
        monkeypatch.setattr(engine, "_gather_requests", held_up.wait)
        run(left_over())
        assert full - held() >= cache + own
        with pytest.raises(RuntimeError, match="no weights during an update"):
            run(engine.generate(*request))
        engine.update_weights(params, 1)
        (after,) = run(engine.generate(*request))
    assert (after.tokens.tolist(), after.version) == (before.tokens.tolist(), 1)
    np.testing.assert_array_equal(after.logprobs, before.logprobs)


def test_weights_that_were_donated_fail_the_request_and_new_ones_serve_again(params):
    with JaxEngine(
        CONFIG, weights(0), EngineSettings(slots=2, max_length=32, prefill_buckets=(8,))
    ) as engine:
        engine.warmup()
        for leaf in jax.tree.leaves(engine._newest.params):
            leaf.delete()
        (error,) = run(outcome(engine.generate([1], SamplingParams(max_tokens=4))))
        assert isinstance(error, RuntimeError)
        assert "deleted" in str(error)
        engine.update_weights(params, 1)
        (response,) = run(engine.generate([1], SamplingParams(max_tokens=4)))
        assert (response.version, response.tokens.size) == (1, 4)
