"""A real server of a Qwen2.5-VL or Qwen3-VL model reads prompts with pictures as the learner does,
before and after a push.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.engines.base import Completion, Engine, SamplingParams
from gigpo_jax.env_bridge.types import IMAGE
from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.token_logprobs import make_token_logprobs
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.prompt_encoding import prompt_encoder, prompt_images
from tests.engines.vllm import serving
from tests.engines.vllm.serving import Served
from tests.models.shapes import VL, VL3, random_params
from tests.models.vision.test_images import random_image
from tests.pictures import small_config

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("compiled_once")]

MAX_PIXELS = 12544
PADS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
# One image of a size that is read as it is and one that is not; both are in several prompts.
IMAGES = [random_image(56, 84), random_image(90, 70)]
TEXTS = [
    (f"you see {IMAGE} now", IMAGES[:1]),
    (f"{IMAGE} was here and {IMAGE} is there", IMAGES),
    (f"look at {IMAGE}", IMAGES[1:]),
    ("no picture", []),
]


@pytest.fixture(scope="module", params=[VL, VL3], ids=["qwen2_5_vl", "qwen3_vl"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pictures")
    shape = request.param
    words = word_tokenizer([text for text, _ in TEXTS], PADS)
    start, image, end, _ = (words.token_id(token) for token in PADS)
    ids = {"start_token": start, "image_token": image, "end_token": end}
    vision = replace(shape.vision, **ids, sections=(4, 6, 6), max_pixels=MAX_PIXELS)
    # vLLM's attention on CPUs has no heads that are less than 32 wide.
    config = replace(
        shape, vocab_size=words.vocab_size, hidden_size=128, head_dim=32, vision=vision
    )
    params = random_params(config)
    save_hf(folder / "model", config, params, tokenizer=words)
    model, weights_dir = folder / "model", folder / "weights"
    process = serving.start(model, folder / "logs", weights_dir)
    try:
        serving.wait_up(process)
        yield Served(model, config, params, words, process, weights_dir)
    finally:
        process.stop()


def ask(engine: Engine, served: Served) -> tuple[list[Completion], list[Sample]]:
    """The response to each prompt, all at once, and what the learner makes of it."""
    vision = served.config.vision
    asked = []
    for number, (text, images) in enumerate(TEXTS):
        ids = (
            prompt_encoder(served.words, vision)(text, images)
            if images
            else served.words.encode(text)
        )
        tokens = np.array(ids)
        params = SamplingParams(max_tokens=8, key=(7, number), session=(7, number))
        asked.append((tokens, params, prompt_images(vision, tokens, images)))

    async def together() -> list[Completion]:
        return await asyncio.gather(*(engine.generate(*request) for request in asked))

    responses = asyncio.run(together())
    return responses, [
        Sample(tokens, response.tokens, response.logprobs, images=images)
        for (tokens, _, images), response in zip(asked, responses, strict=True)
    ]


def test_log_probabilities_with_pictures_are_the_learners_before_and_after_a_push(
    served: Served,
) -> None:
    """The push changes the tower alone; the server had encoded the images of later requests before
    it.
    """
    policy = Policy(served.config, served.params, served.words)
    score = make_token_logprobs(small_config(), policy, make_mesh(), 1.0)
    tower = jax.tree.map(lambda x: x * 1.5, served.params["vision"])
    found = []
    with served.engine() as engine:
        for version, params in enumerate((served.params, served.params | {"vision": tower})):
            if version:
                engine.update_weights(params, version)
            responses, samples = ask(engine, served)
            for ours, response in zip(score(params, None, samples).logprob, responses, strict=True):
                assert response.version == version
                np.testing.assert_allclose(response.logprobs, ours, atol=1e-4)
            found.append(responses[0].logprobs[0])
    assert abs(found[1] - found[0]) > 0.01


def test_a_server_that_reads_images_in_other_sizes_is_refused(served: Served) -> None:
    vision = served.config.vision
    assert vision is not None
    config = replace(served.config, vision=replace(vision, max_pixels=4096))
    with pytest.raises(
        InputError, match=rf"its vision.max_pixels is {MAX_PIXELS}, the learner needs 4096"
    ):
        replace(served, config=config).engine()
