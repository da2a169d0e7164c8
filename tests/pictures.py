"""Prompts with images, and small engines and learners that read them."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config import default_config, resolve
from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.engines.jax.jax_engine import JaxEngine
from gigpo_jax.engines.jax.programs import EngineSettings
from gigpo_jax.learner.samples import Sample
from gigpo_jax.models import decoder, qwen2_5_vl
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.models.vision.images import (
    PromptImages,
    expand_image_tokens,
    prepare_images,
    token_grid,
)
from gigpo_jax.models.vision.vision_config import VisionConfig
from tests.models.shapes import VISION, VL, random_params
from tests.models.vision.test_images import random_image

# Two sizes, two images in one prompt, an image that several prompts share, and a prompt without
# any.
IMAGES = [random_image(56, 84), random_image(96, 96)]
PROMPTS = [
    ([1, 55, 2], IMAGES[:1]),
    ([3, 55, 4, 55, 5], IMAGES),
    ([6, 55, 7, 8], IMAGES[1:]),
    ([9, 10], []),
]


def read_prompts(config: decoder.DecoderConfig = VL) -> list[tuple[np.ndarray, PromptImages]]:
    vision = qwen2_5_vl.vision_config(config)
    texts = [
        np.array(expand_image_tokens(vision, text, [token_grid(vision, x) for x in images]))
        for text, images in PROMPTS
    ]
    return [
        (text, prepare_images(vision, text, images))
        for text, (_, images) in zip(texts, PROMPTS, strict=True)
    ]


def make_engine(config: decoder.DecoderConfig = VL, **changes: Any) -> JaxEngine:
    shapes: dict[str, Any] = {
        "slots": 4,
        "max_length": 136,
        "prefill_buckets": (128,),
        "prefill_rows": (4,),
    }
    settings = EngineSettings(**shapes | changes, decode_steps=8)
    return JaxEngine(config, random_params(config), settings)


async def ask(engine: JaxEngine, numbers: Sequence[int]) -> list[Completion]:
    prompts = read_prompts(engine.config)
    params = [SamplingParams(max_tokens=8, key=(number, 1)) for number in numbers]
    return await asyncio.gather(
        *(
            engine.generate(prompts[n % 4][0], p, prompts[n % 4][1])
            for n, p in zip(numbers, params, strict=True)
        )
    )


def samples_of(responses: Sequence[Completion], config: decoder.DecoderConfig = VL) -> list[Sample]:
    prompts = read_prompts(config)
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


def image_words() -> tuple[Tokenizer, VisionConfig]:
    """A tokenizer with special tokens of images, and the vision settings that name them."""
    marks = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    words = word_tokenizer(["the room now"], marks)
    start, pad, end = map(words.token_id, marks)
    return words, dataclasses.replace(VISION, start_token=start, image_token=pad, end_token=end)
