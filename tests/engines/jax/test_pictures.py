"""Images in the engine of this process: what is encoded, kept, reused and refused."""

import asyncio
import dataclasses
from concurrent.futures import Future

import jax
import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.engines.jax.jax_engine import JaxEngine
from gigpo_jax.engines.jax.programs import EngineSettings
from gigpo_jax.engines.request import Request
from gigpo_jax.models import decoding, next_tokens, qwen2_5_vl
from gigpo_jax.models.vision.images import (
    expand_image_tokens,
    prepare_images,
)
from tests.models.shapes import SMALL, VISION, VL3, on_cpus, random_params
from tests.pictures import IMAGES, make_engine, read_prompts


def test_chunks_are_reused_up_to_the_first_other_image() -> None:
    """Two prompts of the same tokens, whose images differ in one pixel."""
    text = np.array(expand_image_tokens(VISION, [*range(20), 55, *range(20)], [(2, 3)]))
    other = IMAGES[0].copy()
    other[50, 3, 0] ^= 1
    params = SamplingParams(max_tokens=4)
    found = []
    with make_engine(prefill_chunk=8) as engine:
        for image in (IMAGES[0], other, other):
            found.append(
                asyncio.run(engine.generate(text, params, prepare_images(VISION, text, [image])))
            )
            found.append(engine.reused_tokens)
    assert found[1::2] == [0, 16, 16 + 40]
    np.testing.assert_array_equal(found[2].logprobs, found[4].logprobs)
    assert abs(found[2].logprobs - found[0].logprobs).max() > 0


def test_a_conversation_continues_behind_its_pictures() -> None:
    """Earlier pictures are neither read nor encoded again."""
    params = SamplingParams(temperature=0.0, max_tokens=5, session=(1, 1))
    images = [np.roll(IMAGES[0], turn) for turn in range(3)]
    text: list[int] = []
    calls = []
    with make_engine(prefill_chunk=8, keep_responses=True) as engine:

        def respond(text: list[int], images: list[np.ndarray], params: SamplingParams) -> tuple:
            before = engine.reused_tokens
            prompt = np.array(text)
            shown = prepare_images(VISION, prompt, images)
            completion = asyncio.run(engine.generate(prompt, params, shown))
            return completion, engine.reused_tokens - before

        held = 0
        for turn in range(3):
            text = [*text, *expand_image_tokens(VISION, [turn, 55, 4], [(2, 3)])]
            engine._encoder.clear()
            completion, reused = respond(text, images[: turn + 1], params)
            assert reused == held
            assert len(engine._encoder._features) == 1
            calls.append((text, completion))
            held = len(text) + completion.tokens.size - 1
            text = [*text, *completion.tokens.tolist()]
        # Another first picture: nothing of this prompt is in a slot.
        assert respond([*text, 4], [images[1], *images[1:]], params)[1] == 0
        for turn, (text, completion) in enumerate(calls):
            other = dataclasses.replace(params, session=(2, turn))
            again, reused = respond(text, images[: turn + 1], other)
            assert reused % 8 == 0  # whole chunks: this session has no slot to continue
            assert again.tokens.tolist() == completion.tokens.tolist()
            np.testing.assert_allclose(again.logprobs, completion.logprobs, atol=1e-4)


@pytest.mark.slow
def test_an_engine_in_bfloat16_on_cpus_reads_the_features_of_all_layers() -> None:
    """Its layers are apart, and the last one is computed for the last token alone."""
    (_, _), (text, _), *_ = read_prompts(VL3)
    config, params = on_cpus(VL3, random_params(VL3))
    positions, packed = qwen2_5_vl.prepare_inputs(VL3, text[None], IMAGES)
    inputs = (text[None], np.array([len(text)]), np.array([0]), positions, packed)
    scores = []
    for shape, tree in (VL3, random_params(VL3)), (config, params):
        cache = decoding.init_cache(shape, 1, 136, tree["embed"].dtype)
        found, _ = jax.jit(decoding.prefill, static_argnums=0)(shape, tree, cache, *inputs)
        scores.append(np.asarray(found[0], np.float32))
    expected, found = scores
    without = next_tokens.logits(VL3, random_params(VL3), text[None])[0, -1]
    # bfloat16 has 8 significant bits.
    assert np.abs(found - expected).max() < 0.1 * np.abs(expected - without).max()


def test_images_are_encoded_in_batches_of_one_size() -> None:
    """However few there are, so that their features do not depend on other requests."""
    (text, images), *_ = read_prompts()
    with make_engine(prefill_rows=(1, 4)) as engine:
        params = SamplingParams(max_tokens=1)
        request = Request(text, params, [], engine._newest, Future(), images)
        engine._encoder.encode_requests(engine._newest.params, [(request, 0)])
        assert [key[:2] for key in engine._programs._compiled if key[0] == "encode"] == [
            ("encode", 4)
        ]


def test_images_of_another_prompt_or_for_a_model_of_text_are_refused() -> None:
    (text, images), (other, _), *_ = read_prompts()
    with make_engine() as engine:
        for prompt in (other, text[:-1], np.append(text, 3)):
            places = (prompt == VISION.image_token).sum()
            with pytest.raises(
                InputError,
                match=f" {places} places of images that are not those of its images; give",
            ):
                asyncio.run(engine.generate(prompt, SamplingParams(max_tokens=4), images))
    config = SMALL["mha_tied"]
    settings = EngineSettings(slots=1, max_length=32)
    with (
        JaxEngine(config, random_params(config), settings) as engine,
        pytest.raises(InputError, match="text alone"),
    ):
        asyncio.run(engine.generate(text, SamplingParams(max_tokens=4), images))
