"""A policy that reads images, from the observation to the update: engine and learner see the
same.
"""

import asyncio
import dataclasses

import numpy as np
import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.engines.base import Completion
from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import History
from gigpo_jax.env_bridge.types import IMAGE
from gigpo_jax.envs import registry
from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.token_logprobs import make_token_logprobs
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.models.vision.images import (
    prepare_images,
)
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.environment import episode_settings
from gigpo_jax.rollout.prompt_encoding import prompt_encoder
from gigpo_jax.rollout.record import Rollouts, SavedEpisode, SavedStep
from gigpo_jax.tools.credit.run import _replay_rollouts
from tests.models.shapes import VISION, VL, VL3, random_params
from tests.pictures import IMAGES, ask, image_words, make_engine, samples_of, small_config


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


@pytest.mark.slow
def test_prompts_in_chunks_give_the_same_responses_whatever_is_reused(
    responses: list[Completion],
) -> None:
    """Chunks cut through images. Other weights of the same values forget what slots hold and what
    was encoded.
    """
    with make_engine(prefill_chunk=8) as engine:
        engine.warmup()
        together = asyncio.run(ask(engine, range(8)))
        assert engine.reused_tokens > 0
        for number in (5, 2, 0):
            engine.update_weights(random_params(VL), 1)
            reused = engine.reused_tokens
            (alone,) = asyncio.run(ask(engine, [number]))
            assert engine.reused_tokens == reused
            np.testing.assert_array_equal(alone.tokens, together[number].tokens)
            np.testing.assert_array_equal(alone.logprobs, together[number].logprobs)
    for response, chunked in zip(responses, together, strict=True):
        np.testing.assert_array_equal(response.tokens, chunked.tokens)
        np.testing.assert_allclose(response.logprobs, chunked.logprobs, atol=1e-4)


def test_the_learner_gives_the_log_probabilities_of_the_engine(responses: list[Completion]) -> None:
    """Positions, places and features of packed rows and of decoding agree, for every prompt."""
    config = small_config()
    policy = Policy(VL, random_params(VL), word_tokenizer([]))
    score = make_token_logprobs(config, policy, make_mesh(), 1.0)
    found = score(policy.params, None, samples_of(responses)).logprob
    for ours, response in zip(found, responses, strict=True):
        np.testing.assert_allclose(ours, response.logprobs, atol=2e-4)


@pytest.mark.slow
def test_engine_and_learner_read_the_features_of_all_layers() -> None:
    """Of Qwen3-VL: whole prompts, chunks and packed rows give the same log-probabilities."""
    with make_engine(VL3) as engine:
        whole = asyncio.run(ask(engine, range(4)))
    with make_engine(VL3, prefill_chunk=8) as engine:
        chunked = asyncio.run(ask(engine, range(8)))
        assert engine.reused_tokens > 0
    policy = Policy(VL3, random_params(VL3), word_tokenizer([]))
    score = make_token_logprobs(small_config(), policy, make_mesh(), 1.0)
    packed = score(policy.params, None, samples_of(whole, VL3)).logprob
    for response, other, learner in zip(whole, chunked[:4], packed, strict=True):
        np.testing.assert_array_equal(other.tokens, response.tokens)
        np.testing.assert_allclose(other.logprobs, response.logprobs, atol=1e-4)
        np.testing.assert_allclose(learner, response.logprobs, atol=2e-4)


def test_each_distinct_image_is_encoded_once_a_microbatch(responses: list[Completion]) -> None:
    rng = np.random.default_rng(0)
    (batch,) = make_minibatches(samples_of(responses), steps=8, row_length=144, rows=4, rng=rng)
    used = (batch.images.grid[: int(batch.microbatches)].prod(-1) > 0).sum(-1)
    assert used.tolist() == [2] * int(batch.microbatches)
    assert batch.images.patches.shape[1] == 4
    assert int((batch.images.index >= 0).sum()) == 2 * (6 + 6 + 9 + 9)


def test_a_prompt_has_a_place_for_each_token_of_its_images() -> None:
    """Special tokens in the text itself lose their meaning, and nothing is cut out of a prompt with
    images.
    """
    words, vision = image_words()
    tokens = prompt_encoder(words, vision)(f"the room now: {IMAGE} <|image_pad|>", IMAGES[:1])
    assert tokens.count(vision.image_token) == 6
    start = tokens.index(vision.start_token)
    places = [vision.start_token, *[vision.image_token] * 6, vision.end_token]
    assert tokens[start : start + 8] == places
    env = registry.make("sokoban")
    seen = env.reset(env.tasks("train")[0])
    config = default_config().unlock()
    config.env.update(name="sokoban", prompt="compact", max_steps=15)
    config.sampling.max_prompt_tokens = 30
    settings = episode_settings(resolve(config.lock()), temperature=1.0, stop_token_ids=())
    with pytest.raises(
        InputError, match=r"max_prompt_tokens=30: a prompt with 1 image\(s\) takes 40 tokens"
    ):
        settings.prompt(seen, History(0), prompt_encoder(words, vision))


def test_pictures_for_a_model_of_text_and_the_other_way_round_are_refused() -> None:
    words = word_tokenizer([])
    with pytest.raises(
        InputError, match="the environment shows pictures, and this model reads text alone"
    ):
        prompt_encoder(words, None)(IMAGE, IMAGES)
    with pytest.raises(
        InputError, match="this model reads pictures, and the environment shows none"
    ):
        prompt_encoder(word_tokenizer([]), VISION)("text")


def test_a_replay_shows_the_pictures_that_the_policy_saw() -> None:
    """The environment gives them again: saved episodes have the text alone."""
    words, vision = image_words()
    policy = Policy(
        dataclasses.replace(VL, vocab_size=words.vocab_size, vision=vision), None, words
    )
    config = default_config().unlock()
    config.env.update(name="sokoban", prompt="compact", max_steps=15)
    env = registry.make("sokoban")
    task = env.tasks("train")[0]
    seen = env.reset(task)
    prompt = registry.find_style("sokoban", "compact")
    steps = []
    for action in ("up", "left"):
        text = build_prompt(
            prompt, seen, History(0), encode=prompt_encoder(words, vision), limit=200
        ).text
        result = env.step(action)
        told = text, "", action, True, None, seen.text, "", result.reward, 0.0, "stop"
        steps.append(SavedStep(*told, version=0, prompt_length=0, tokens=(1,), logprobs=(0.0,)))
        images = seen.images
        seen = result.observation
    episode = SavedEpisode(
        task.id, task.type, task.split, task.data, 0, 0, False, 0.0, False, "", tuple(steps)
    )
    (again,) = _replay_rollouts(resolve(config), env, policy, Rollouts(0, 1.0, (episode,), {}))
    first, last = again.turns
    counts = [(turn.prompt_tokens == vision.image_token).sum() for turn in again.turns]
    assert counts == [36, 36]
    expected = prepare_images(vision, last.prompt_tokens, images)
    np.testing.assert_array_equal(last.images.images[0].patches, expected.images[0].patches)
    assert (first.images.images[0].patches != last.images.images[0].patches).any()


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((28, 28, 3), np.float32), "float32 \\[28, 28, 3\\]; give uint8 \\[H, W, 3\\]"),
        (np.zeros((28, 28, 4), np.uint8), "uint8 \\[28, 28, 4\\]; give uint8"),
        (np.zeros((0, 28, 3), np.uint8), "at least one pixel"),
        (np.zeros((28, 28 * 201, 3), np.uint8), "more than 200 times the other"),
    ],
)
def test_images_that_cannot_be_read_are_refused(image: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prompt_encoder(word_tokenizer([]), VISION)(IMAGE, [image])
