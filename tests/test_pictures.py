"""A policy that reads images, from the observation to the update: engine and learner see the same."""

import asyncio
import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.batching import Sample, make_minibatches
from gigpo_jax.columns.token_logprobs import make_token_logprobs
from gigpo_jax.config import default_config, resolve
from gigpo_jax.env_bridge.history import History
from gigpo_jax.env_bridge.types import IMAGE, Observation
from gigpo_jax.envs import registry
from gigpo_jax.errors import InputError
from gigpo_jax.models.images import PromptImages, expand, grid_of, read_images
from gigpo_jax.models.tokenizer import word_tokenizer
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.environment import episode_settings
from gigpo_jax.rollout.pictures import prompt_encoder
from gigpo_jax.run import partition
from gigpo_jax.sampling.base import Completion, SamplingParams
from gigpo_jax.sampling.jax_engine import JaxEngine
from gigpo_jax.sampling.programs import EngineSettings
from tests.models.shapes import SMALL, VISION, VL, random_params
from tests.models.test_images import random_image

# Two sizes, two images in one prompt, an image that several prompts share, and a prompt without any.
IMAGES = [random_image(56, 84), random_image(96, 96)]
PROMPTS = [([1, 55, 2], IMAGES[:1]), ([3, 55, 4, 55, 5], IMAGES), ([6, 55, 7, 8], IMAGES[1:]), ([9, 10], [])]


def read_prompts() -> list[tuple[np.ndarray, PromptImages]]:
    texts = [np.array(expand(VISION, text, [grid_of(VISION, x) for x in images])) for text, images in PROMPTS]
    return [(text, read_images(VISION, text, images)) for text, (_, images) in zip(texts, PROMPTS, strict=True)]


def make_engine() -> JaxEngine:
    settings = EngineSettings(slots=4, max_length=136, prefill_buckets=(128,), prefill_rows=(4,), decode_steps=8)
    return JaxEngine(VL, random_params(VL), settings)


async def ask(engine: JaxEngine, numbers: Sequence[int]) -> list[Completion]:
    prompts = read_prompts()
    params = [SamplingParams(max_tokens=8, key=(number, 1)) for number in numbers]
    return await asyncio.gather(
        *(engine.generate(prompts[n % 4][0], p, prompts[n % 4][1]) for n, p in zip(numbers, params, strict=True))
    )


@pytest.fixture(scope="module")
def responses() -> list[Completion]:
    """Of eight requests, each prompt twice, that were batched."""
    with make_engine() as engine:
        together = asyncio.run(ask(engine, range(8)))
        alone = [asyncio.run(ask(engine, [number]))[0] for number in (5, 2, 0)]
    for response, again in zip(alone, (together[n] for n in (5, 2, 0)), strict=True):
        np.testing.assert_array_equal(response.tokens, again.tokens)
        np.testing.assert_array_equal(response.logprobs, again.logprobs)
    return together


def samples_of(responses: Sequence[Completion]) -> list[Sample]:
    prompts = read_prompts()
    return [
        Sample(prompts[n % 4][0], response.tokens, response.logprobs, images=prompts[n % 4][1])
        for n, response in enumerate(responses)
    ]


def small_config() -> ConfigDict:
    config = default_config().unlock()
    config.model.compute_dtype = "float32"
    config.batch.update(row_length=144, rows=2, logprob_chunk=4096)
    config.sampling.update(max_prompt_tokens=128, max_response_tokens=8)
    return resolve(config.lock())


def test_the_learner_gives_the_log_probabilities_of_the_engine(responses: list[Completion]) -> None:
    """Positions, places and features of packed rows and of decoding agree, for every prompt."""
    config, policy = small_config(), Policy(VL, random_params(VL), word_tokenizer([]))
    score = make_token_logprobs(config, policy, partition.make_mesh(), 1.0)
    found = score(policy.params, None, samples_of(responses)).logprob
    for ours, response in zip(found, responses, strict=True):
        np.testing.assert_allclose(ours, response.logprobs, atol=2e-4)


def test_each_distinct_image_is_encoded_once_a_microbatch(responses: list[Completion]) -> None:
    rng = np.random.default_rng(0)
    (batch,) = make_minibatches(samples_of(responses), steps=8, row_length=144, rows=4, rng=rng)
    used = (batch.images.grid[: int(batch.microbatches)].prod(-1) > 0).sum(-1)
    assert used.tolist() == [2] * int(batch.microbatches)
    assert batch.images.patches.shape[1] == 4
    assert int((batch.images.index >= 0).sum()) == 2 * (6 + 6 + 9 + 9)


def test_images_of_another_prompt_or_for_a_model_of_text_are_refused() -> None:
    (text, images), (other, _), *_ = read_prompts()
    with make_engine() as engine, pytest.raises(InputError, match="15 places of images that are not those"):
        asyncio.run(engine.generate(other, SamplingParams(max_tokens=4), images))
    config = SMALL["mha_tied"]
    settings = EngineSettings(slots=1, max_length=32)
    with JaxEngine(config, random_params(config), settings) as engine, pytest.raises(InputError, match="text alone"):
        asyncio.run(engine.generate(text, SamplingParams(max_tokens=4), images))


def test_a_prompt_has_a_place_for_each_token_of_its_images() -> None:
    """Special tokens in the text itself lose their meaning, and nothing is cut out of a prompt with images."""
    words = word_tokenizer(["the room now"], ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"))
    start, pad, end = (words.token_id(token) for token in ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"))
    vision = dataclasses.replace(VISION, start_token=start, image_token=pad, end_token=end)
    encode = prompt_encoder(words, vision, IMAGES[:1])
    tokens = encode(f"the room now: {IMAGE} <|image_pad|>")
    assert tokens.count(pad) == 6
    at = tokens.index(start)
    assert tokens[at : at + 8] == [start, *[pad] * 6, end]
    env = registry.make("sokoban")
    seen = env.reset(env.tasks("train")[0])
    config = default_config().unlock()
    config.env.update(name="sokoban", prompt="compact", max_steps=15)
    config.sampling.max_prompt_tokens = 30
    settings = episode_settings(resolve(config.lock()), temperature=1.0, stop_token_ids=())
    with pytest.raises(InputError, match=r"max_prompt_tokens=30: a prompt with 1 image\(s\) takes 40 tokens"):
        settings.prompt(seen, History(0), prompt_encoder(words, vision, seen.images))


def test_pictures_for_a_model_of_text_and_the_other_way_round_are_refused() -> None:
    words = word_tokenizer([])
    with pytest.raises(InputError, match="the environment shows pictures, and this model reads text alone"):
        prompt_encoder(words, None, IMAGES)
    with pytest.raises(InputError, match="this model reads pictures, and the environment shows none"):
        prompt_encoder(words, VISION, Observation("text", "", None, "").images)
