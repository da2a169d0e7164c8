"""A policy that reads images, from the observation to the update: engine and learner see the
same.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.engines.base import Completion, SamplingParams
from gigpo_jax.engines.jax.jax_engine import JaxEngine
from gigpo_jax.engines.jax.programs import EngineSettings
from gigpo_jax.engines.request import Request
from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import History
from gigpo_jax.env_bridge.types import IMAGE
from gigpo_jax.envs import registry
from gigpo_jax.learner.critic_model import critic_shape, make_token_values
from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.samples import Sample, join_continuations
from gigpo_jax.learner.token_logprobs import make_token_logprobs
from gigpo_jax.models import decoder, decoding, qwen2_5_vl
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.models.value_head import predict_values
from gigpo_jax.models.vision.images import (
    PromptImages,
    expand_image_tokens,
    prepare_images,
    token_grid,
)
from gigpo_jax.policy import Policy, forward_function
from gigpo_jax.rl.train_step import select_microbatch
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.update import response_logprobs
from gigpo_jax.rollout.environment import episode_settings
from gigpo_jax.rollout.prompt_encoding import prompt_encoder
from gigpo_jax.rollout.record import Rollouts, SavedEpisode, SavedStep
from gigpo_jax.tools.credit.gradients import fold_array, group_gradients
from gigpo_jax.tools.credit.run import _replay_rollouts
from gigpo_jax.trajectory import Step
from tests.models.shapes import SMALL, VISION, VL, VL3, on_cpus, random_params
from tests.models.vision.test_images import random_image
from tests.turns import make_turn

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
    without = decoder.logits(VL3, random_params(VL3), text[None])[0, -1]
    # bfloat16 has 8 significant bits.
    assert np.abs(found - expected).max() < 0.1 * np.abs(expected - without).max()


def test_each_distinct_image_is_encoded_once_a_microbatch(responses: list[Completion]) -> None:
    rng = np.random.default_rng(0)
    (batch,) = make_minibatches(samples_of(responses), steps=8, row_length=144, rows=4, rng=rng)
    used = (batch.images.grid[: int(batch.microbatches)].prod(-1) > 0).sum(-1)
    assert used.tolist() == [2] * int(batch.microbatches)
    assert batch.images.patches.shape[1] == 4
    assert int((batch.images.index >= 0).sum()) == 2 * (6 + 6 + 9 + 9)


def test_a_prompt_of_text_alone_is_as_one_without_images() -> None:
    """Agent programs give such samples; a run of several environments packs them beside those with
    images.
    """
    response = np.array([1, 2], np.int32)
    samples = [
        Sample(text, response, np.zeros(2, np.float32), images=images)
        for text, images in read_prompts()
    ]
    texts = [*samples[:3], dataclasses.replace(samples[3], images=None)]
    (found,), (expected,) = (
        make_minibatches(each, steps=4, row_length=144, rows=2, rng=np.random.default_rng(0))
        for each in (texts, samples)
    )
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "values"), [(VL, 588), (VL3, 768)])
def test_microbatches_without_images_have_the_patches_of_the_model(
    shape: decoder.DecoderConfig, values: int
) -> None:
    """A text alone, beside a prompt with images or not, and rows that nothing fills."""
    response = np.array([1, 2], np.int32)
    samples = [
        Sample(text, response, np.zeros(2, np.float32), images=images)
        for text, images in read_prompts(shape)
    ]
    for members in (samples[:1], samples[3:], samples):
        rng = np.random.default_rng(0)
        (batch,) = make_minibatches(members, steps=4, row_length=64, rows=1, rng=rng)
        assert batch.images.patches.shape[-1] == values


def talk_about(images: Sequence[np.ndarray], seed: int) -> list[Sample]:
    """A conversation of three steps: a picture, another one, and a text alone."""
    rng = np.random.default_rng(seed)
    samples = []
    past: list[int] = []
    for step, message in enumerate(([1, 55, 2], [3, 55], [4, 5])):
        grids = [token_grid(VISION, image) for image in images[step : step + 1]]
        past += expand_image_tokens(VISION, message, grids)
        response = rng.integers(6, 50, 4).astype(np.int32)
        prompt = np.array(past, np.int32)
        pictures = prepare_images(VISION, prompt, images[: step + 1])
        behaviour = rng.normal(size=4).astype(np.float32)
        samples.append(Sample(prompt, response, behaviour, images=pictures))
        past += response.tolist()
    return samples


def differentiate(config: ConfigDict, params: decoder.Params, samples: list[Sample]) -> Any:
    """The gradient of a sum of log-probabilities and entropies, weighted by advantages."""
    rng = np.random.default_rng(0)
    (batch,) = make_minibatches(samples, steps=len(samples), row_length=144, rows=2, rng=rng)
    forward = forward_function(config, VL, make_mesh())

    @jax.jit
    @jax.grad
    def measure(params: decoder.Params, micro: StepBatch) -> jax.Array:
        bound = functools.partial(forward, params, None)
        logprob, entropy = response_logprobs(bound, micro, chunk=4096)
        return jnp.sum(micro.weight * micro.advantage * (logprob + 0.1 * entropy))

    gradients = [measure(params, select_microbatch(batch, m)) for m in range(batch.microbatches)]
    return jax.tree.map(lambda *leaves: np.sum(leaves, axis=0), *gradients)


@pytest.mark.slow
def test_a_conversation_about_pictures_is_one_segment_with_the_same_scores() -> None:
    other = IMAGES[0].copy()
    other[50, 3, 0] ^= 1
    talks = [talk_about(IMAGES, 0), talk_about(IMAGES[::-1], 1), talk_about([other, IMAGES[1]], 0)]
    samples = [sample for talk in talks for sample in talk]
    samples = [
        dataclasses.replace(sample, advantage=0.1 * (1 + number))
        for number, sample in enumerate(samples)
    ]
    assert [len(members) for members in join_continuations(samples)] == [3, 3, 3]
    # Equal tokens about another picture: the step that would continue the first talk stays apart.
    assert len(join_continuations([talks[0][0], talks[2][1]])) == 2
    config = small_config()
    policy = Policy(VL, random_params(VL), word_tokenizer([]))
    score = make_token_logprobs(config, policy, make_mesh(), 1.0)
    found = score(policy.params, None, samples)
    # The longest first: none continues the one before it.
    expected = score(policy.params, None, samples[::-1])
    for name in ("logprob", "entropy"):
        pairs = zip(getattr(found, name), getattr(expected, name)[::-1], strict=True)
        for ours, separate in pairs:
            np.testing.assert_allclose(ours, separate, rtol=1e-6, atol=1e-6)
    # The pictures matter, so that a wrong place or position would be seen.
    assert abs(found.logprob[6] - found.logprob[0]).max() > 1e-4
    gradient = differentiate(config, policy.params, samples)
    separate = differentiate(config, policy.params, samples[::-1])
    for ours, leaf in zip(*map(jax.tree.leaves, (gradient, separate)), strict=True):
        np.testing.assert_allclose(ours, leaf, rtol=0, atol=1e-6 * max(np.abs(leaf).max(), 1.0))
    tower = jax.tree.leaves(separate["vision"])
    assert min(np.abs(leaf).max() for leaf in tower) > 1e-3


def test_images_are_encoded_in_batches_of_one_size() -> None:
    """However few there are, so that their features do not depend on other requests."""
    (text, images), *_ = read_prompts()
    with make_engine(prefill_rows=(1, 4)) as engine:
        future: asyncio.Future[Completion] = asyncio.Future(loop=asyncio.new_event_loop())
        request = Request(text, SamplingParams(max_tokens=1), [], engine._newest, future, images)
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


def test_a_prompt_has_a_place_for_each_token_of_its_images() -> None:
    """Special tokens in the text itself lose their meaning, and nothing is cut out of a prompt with
    images.
    """
    words = word_tokenizer(
        ["the room now"], ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    )
    start, pad, end = (
        words.token_id(token) for token in ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    )
    vision = dataclasses.replace(VISION, start_token=start, image_token=pad, end_token=end)
    tokens = prompt_encoder(words, vision)(f"the room now: {IMAGE} <|image_pad|>", IMAGES[:1])
    assert tokens.count(pad) == 6
    at = tokens.index(start)
    assert tokens[at : at + 8] == [start, *[pad] * 6, end]
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


@pytest.mark.slow
def test_a_critic_reads_the_pictures_and_is_a_folder(tmp_path: Path) -> None:
    """A value depends on the text with its images alone; `load_hf` reads what `save_hf` wrote."""
    config = small_config()
    shape = dataclasses.replace(VL, value_head=True)
    config.unlock().critic.kind = "model"
    params = random_params(shape, 3)
    prompts = read_prompts()
    response = np.array([1, 2], np.int32)
    samples = [
        Sample(text, response, np.zeros(2, np.float32), images=images) for text, images in prompts
    ]
    policy = Policy(VL, random_params(VL), word_tokenizer([]))
    found = make_token_values(config, policy, make_mesh())(params, (policy.params, None), samples)
    for (text, _), (_, images), values in zip(prompts, PROMPTS, found, strict=True):
        positions, placed = qwen2_5_vl.prepare_inputs(
            VL, np.append(text, response[:1])[None], images
        )
        hidden = decoder.hidden_states(
            shape, params, np.append(text, response[:1])[None], positions, images=placed
        )
        np.testing.assert_allclose(
            values, predict_values(params, hidden[0, len(text) - 1 :]), atol=2e-4
        )
    save_hf(tmp_path / "critic", shape, params)
    again, same = load_hf(tmp_path / "critic")
    assert again == shape
    np.testing.assert_array_equal(same["value_head"]["kernel"], params["value_head"]["kernel"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [None, {"image_token": 56}, {"min_pixels": 28 * 28}, {"max_pixels": 28 * 28 * 4}]
)
def test_a_critic_that_reads_other_images_is_refused(
    changes: dict[str, int] | None, tmp_path: Path
) -> None:
    """One of text alone too, and one with a tower for a policy of text alone."""
    other = dataclasses.replace(VL, vision=changes and dataclasses.replace(VISION, **changes))
    save_hf(tmp_path, other, random_params(other))
    config = small_config().unlock()
    config.critic.path = str(tmp_path)
    text = dataclasses.replace(VL, vision=None)
    for shape in (VL, text) if changes else (VL,):
        with pytest.raises(
            InputError, match=r"^config\.critic\.path=.*not those of the policy; name a model"
        ):
            critic_shape(config, shape)


@pytest.mark.slow
def test_gradients_of_steps_are_those_of_their_pictures() -> None:
    """Sketches of two steps with the same tokens and other images, against their gradients."""
    config, params, (text, images), response = (
        small_config(),
        random_params(VL),
        read_prompts()[0],
        np.array([3, 4, 5]),
    )
    other = prepare_images(VISION, text, [random_image(56, 84)[::-1]])
    turns = [
        make_turn(prompt_tokens=text, response_tokens=response, images=shown)
        for shown in (images, other)
    ]
    steps = [Step(n, 0, n, turn) for n, turn in enumerate(turns)]
    policy = Policy(VL, params, word_tokenizer([]))
    got = group_gradients(config, policy, make_mesh(1, 1, 1), params, steps)(np.ones(2))

    def objective(params: decoder.Params, image: np.ndarray) -> jax.Array:
        row = np.append(text, response)[None]
        positions, placed = qwen2_5_vl.prepare_inputs(VL, row, [image])
        hidden = decoder.hidden_states(VL, params, row, positions, images=placed)[
            0, len(text) - 1 : -1
        ]
        found = jnp.take_along_axis(
            jax.nn.log_softmax(decoder.score_tokens(VL, params, hidden)), response[:, None], 1
        )
        return found.sum()

    for sketch, image in zip(got, (IMAGES[0], random_image(56, 84)[::-1]), strict=True):
        leaves = jax.tree.leaves(jax.grad(objective)(params, image))
        expected = np.sum([fold_array(leaf, number) for number, leaf in enumerate(leaves)], axis=0)
        np.testing.assert_allclose(sketch, expected, atol=1e-3 * np.abs(expected).max())


def test_a_replay_shows_the_pictures_that_the_policy_saw() -> None:
    """The environment gives them again: saved episodes have the text alone."""
    words = word_tokenizer(
        ["the room now"], ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    )
    start, pad, end = (
        words.token_id(token) for token in ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    )
    vision = dataclasses.replace(VISION, start_token=start, image_token=pad, end_token=end)
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
    assert [(turn.prompt_tokens == pad).sum() for turn in again.turns] == [36, 36]
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


def test_image_tokens_that_the_policy_writes_change_nothing() -> None:
    """The learner takes places from the prompt: the response is scored as the text that it is."""
    config, policy, (text, images) = (
        small_config(),
        Policy(VL, random_params(VL), word_tokenizer([])),
        read_prompts()[0],
    )
    response = np.array([4, VISION.image_token, VISION.image_token, 5], np.int32)
    score = make_token_logprobs(config, policy, make_mesh(), 1.0)
    (found,) = score(
        policy.params, None, [Sample(text, response, np.zeros(4, np.float32), images=images)]
    ).logprob
    positions, placed = qwen2_5_vl.prepare_inputs(VL, text[None], IMAGES[:1])
    row = np.append(text, response)[None]
    more = np.arange(len(text), len(text) + 4) + images.layout.shift
    positions = np.concatenate([positions, np.tile(more, (3, 1, 1))], axis=2)
    placed = dataclasses.replace(
        placed, index=np.pad(placed.index, ((0, 0), (0, 4)), constant_values=-1)
    )
    hidden = decoder.hidden_states(VL, policy.params, row, positions, images=placed)[
        0, len(text) - 1 : -1
    ]
    expected = np.asarray(jax.nn.log_softmax(decoder.score_tokens(VL, policy.params, hidden)))[
        np.arange(4), response
    ]
    np.testing.assert_allclose(found, expected, atol=2e-4)
