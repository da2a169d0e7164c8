"""Images in packed rows: scores, gradients and values of steps with them."""

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

from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.learner.critic_model import critic_shape, make_token_values
from gigpo_jax.learner.packing import make_minibatches
from gigpo_jax.learner.samples import Sample, join_continuations
from gigpo_jax.learner.token_logprobs import make_token_logprobs
from gigpo_jax.models import decoder, qwen2_5_vl
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.models.value_head import predict_values
from gigpo_jax.models.vision.images import (
    expand_image_tokens,
    prepare_images,
    token_grid,
)
from gigpo_jax.policy import Policy, forward_function
from gigpo_jax.rl.train_step import select_microbatch
from gigpo_jax.rl.types import StepBatch
from gigpo_jax.rl.update import response_logprobs
from gigpo_jax.tools.credit.gradients import fold_array, group_gradients
from tests.models.shapes import VISION, VL, VL3, random_params
from tests.models.vision.test_images import random_image
from tests.pictures import IMAGES, PROMPTS, read_prompts, small_config
from tests.turns import make_step, make_turn


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
    steps = [make_step(n, 0, turn, group=n) for n, turn in enumerate(turns)]
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
