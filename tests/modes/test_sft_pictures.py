"""Imitation from pictures: the losses equal the model's, read without packing."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from safetensors.numpy import load_file

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.env_bridge.types import IMAGE
from gigpo_jax.models import load_hf, qwen2_5_vl
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.models.vision.images import expand_image_tokens, token_grid
from gigpo_jax.models.vision.vision_config import IMAGE_TOKENS, VisionConfig
from gigpo_jax.modes import sft
from gigpo_jax.policy import Policy
from tests.models.shapes import VL

EPISODES = 20  # two of them are held out


def small_config(**changes: object) -> ConfigDict:
    """Sokoban in rooms of 5 x 5: 25 tokens a picture."""
    config = default_config().unlock()
    config.env.update(
        name="sokoban", prompt="compact", max_steps=15, history=0, show_admissible=False
    )
    config.env.options = ConfigDict({"size": 5})
    config.model.update(compute_dtype="float32", remat="none")
    config.model.shape.update(
        hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2, num_kv_heads=1
    )
    config.model.shape.vision.update(depth=1, hidden_size=16)
    config.sampling.update(max_prompt_tokens=29, max_response_tokens=8)
    config.batch.update(row_length=132, rows=1)
    config.optim.lr = 1e-2
    config.sft.update(episodes=EPISODES, epochs=5, minibatch=16)
    config.update_from_flattened_dict(changes)
    return resolve(config.lock())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model of a warm start, and its run."""
    folder = tmp_path_factory.mktemp("sft")
    assert sft.run(small_config(), folder / "run", str(folder / "model")) == 0
    return folder


@pytest.mark.slow
def test_imitation_of_pictures_minimises_the_cross_entropy_of_the_model(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "run/metrics.jsonl").read_text().splitlines()]
    held_out = [line["sft/held_out_loss"] for line in lines if "sft/held_out_loss" in line]
    assert len(held_out) == 5
    assert held_out[-1] < held_out[0] / 2
    shape, params = load_hf(trained / "model")
    vision = qwen2_5_vl.vision_config(shape)
    words = load_tokenizer(trained / "model")
    losses: list[float] = []
    for demonstration in sft.play_demonstrations(
        small_config(), lambda text, images: words.encode(text), words.encode
    )[EPISODES - 2 :]:
        for turn in demonstration.turns:
            assert turn.prompt == IMAGE
            text = expand_image_tokens(
                vision,
                words.encode_chat(turn.prompt, mark=IMAGE, special="".join(IMAGE_TOKENS)),
                [(5, 5)],
            )
            assert token_grid(vision, turn.images[0]) == (5, 5)
            target = words.encode(turn.response)
            scores = qwen2_5_vl.logits(shape, params, np.array([text + target]), turn.images)
            logprobs = jax.nn.log_softmax(scores[0, len(text) - 1 : -1])
            losses += (
                -np.take_along_axis(np.asarray(logprobs), np.array(target)[:, None], 1)[:, 0]
            ).tolist()
    np.testing.assert_allclose(held_out[-1], np.mean(losses), rtol=1e-4)


@pytest.mark.slow
def test_a_new_model_has_the_tokens_that_vllm_looks_up(trained: Path) -> None:
    words = load_tokenizer(trained / "model")
    assert None not in [words.token_id(token) for token in (*IMAGE_TOKENS, "<|video_pad|>")]


@pytest.mark.slow
def test_an_adapter_learns_in_the_tower_too(trained: Path, tmp_path: Path) -> None:
    """The exported model is the start with the exported pairs added; nothing else changed."""
    lora = {
        "model.path": str(trained / "model"),
        "model.lora.rank": 2,
        "model.lora.vision": True,
        "sft.epochs": 1,
    }
    assert sft.run(small_config(**lora), tmp_path / "run", str(tmp_path / "model")) == 0
    start_params, end_params = (
        load_file(folder / "model/model.safetensors") for folder in (trained, tmp_path)
    )
    pairs = load_file(tmp_path / "model/adapter/adapter_model.safetensors")
    changed = {
        name for name in start_params if not np.array_equal(start_params[name], end_params[name])
    }
    qkv = "visual.blocks.0.attn.qkv"
    scale = 32 / 2
    a, b = (pairs[f"base_model.model.model.{qkv}.lora_{matrix}.weight"] for matrix in "AB")
    assert np.abs(b).max() > 1e-4
    np.testing.assert_allclose(
        end_params[f"{qkv}.weight"], start_params[f"{qkv}.weight"] + scale * b @ a, atol=1e-6
    )
    assert len(changed) == len(pairs) // 2 == 5 + 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sft.learn_prompts": True},
            "config.sft.learn_prompts=True: prompts with pictures cannot be predicted",
        ),
        ({"model.shape.vision.depth": 0}, "shows pictures, and this model reads text alone"),
        (
            {"env.options.observation": "text"},
            "this model reads pictures, and the environment shows none",
        ),
        (
            {"sampling.max_prompt_tokens": 28},
            r"max_prompt_tokens=28: a prompt with 1 image\(s\) takes 29 tokens",
        ),
    ],
)
def test_what_cannot_be_imitated_is_refused(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        sft.run(small_config(**changes), tmp_path / "run", "")
    assert list(tmp_path.iterdir()) == []


def pictures_of_all_steps(inputs: PromptInput) -> str:
    """Marks beside words without a space, and a punctuation mark."""
    past = [f"saw{event.observation}did, {event.action}" for event in inputs.history]
    return " ".join([*past, f"now{inputs.observation}"])


def test_a_new_model_is_shown_no_past_pictures_for_which_a_prompt_has_no_room() -> None:
    """A step takes 25 + 2 tokens for its picture, and 4 (past) or 1 (now, and 2 of the chat) for
    words.
    """
    settings = {
        "env.prompt": f"{__name__}:pictures_of_all_steps",
        "env.history": 3,
        "sft.episodes": 2,
    }
    config = small_config(**settings, **{"sampling.max_prompt_tokens": 30 + 2 * 31})
    demonstrations = sft.play_demonstrations(
        config, sft._prompt_measure(None, reads_images=True), str.split
    )
    lengths = [
        30 + 31 * min(step, 2)
        for demonstration in demonstrations
        for step in range(len(demonstration.turns))
    ]
    words = word_tokenizer(sft.demonstrated_texts(demonstrations), IMAGE_TOKENS)
    start, image, end = map(words.token_id, IMAGE_TOKENS)
    vision = VisionConfig(start_token=start, image_token=image, end_token=end, sections=(2, 3, 3))
    policy = Policy(replace(VL, vision=vision), None, words)
    assert [
        len(sample.prompt_tokens)
        for samples in sft.encode_demonstrations(demonstrations, policy, config)
        for sample in samples
    ] == lengths
    assert max(lengths) == 92


def test_the_heads_of_a_new_tower_share_its_width() -> None:
    with pytest.raises(InputError, match=r"vision.hidden_size=24: must be a multiple of 16"):
        small_config(**{"model.shape.vision.hidden_size": 24})
