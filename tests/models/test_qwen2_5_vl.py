"""The models are Qwen2.5-VL and Qwen3-VL: transformers, reading what `save_hf` wrote, gives the
same logits, gradients and tokens.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.models import decoder, decoding, qwen2_5_vl
from gigpo_jax.models.decoder import DecoderConfig
from gigpo_jax.models.execution import Execution
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.files.write_config import config_json
from gigpo_jax.models.published import PUBLISHED_VISION
from gigpo_jax.models.vision.images import (
    distinct_images,
    expand_image_tokens,
    locate_images,
    prepare_images,
    token_grid,
)
from gigpo_jax.models.vision.vision import Images, encode_images, pack_images
from gigpo_jax.models.vision.vision_config import QWEN3_VL, VisionConfig, preprocessor_json
from tests.models.shapes import SMALL, VISION, VL, VL3, check_gradient, random_params
from tests.models.vision.test_images import random_image

pytestmark = pytest.mark.slow

# The widths of Qwen2.5-VL-3B and, in the tower, of Qwen3-VL-8B, but few layers and words.
WIDE = DecoderConfig(
    2048, 2048, 11008, 1, 16, 2, 128, vision=VisionConfig(depth=2, full_layers=(1,), image_token=55)
)
WIDE3 = DecoderConfig(
    2048,
    2048,
    6144,
    2,
    16,
    8,
    128,
    model_type="qwen3",
    vision=dataclasses.replace(QWEN3_VL, depth=2, deep_layers=(0,), image_token=55),
)
IMAGES = [random_image(56, 84), random_image(252, 280), random_image(96, 96)]
MODELS = ["qwen2_5_vl", "qwen3_vl"]
TEXTS = (
    [1, 2, 53, 55, 54, 3, 4, 53, 55, 54, 5, 6],
    [7, 53, 55, 54, 8, 9, 10],
)  # each image in one place


def texts_and_images(config: VisionConfig) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Two texts with expanded places, and the images of each."""
    image_groups = [IMAGES[:2], IMAGES[2:]]
    texts = [
        np.array(expand_image_tokens(config, t, [token_grid(config, x) for x in group]))
        for t, group in zip(TEXTS, image_groups)
    ]
    return texts, image_groups


def in_transformers(folder: pathlib.Path) -> Any:
    transformers = pytest.importorskip("transformers")
    model, report = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, output_loading_info=True
    )
    assert model.config.architectures == [type(model).__name__]
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model


def their_inputs(
    config: VisionConfig, tokens: np.ndarray, images: Sequence[np.ndarray]
) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    processor = processors.Qwen2VLImageProcessorPil.from_dict(preprocessor_json(config))
    prepared = processor(images, return_tensors="pt")
    places = torch.tensor((tokens == config.image_token).astype(int))[None]
    return dict(prepared) | {"input_ids": torch.tensor(tokens)[None], "mm_token_type_ids": places}


def check_logits_and_gradients(config: DecoderConfig, folder: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    assert config.vision is not None
    params, (texts, image_groups) = random_params(config), texts_and_images(config.vision)
    if config in (
        WIDE,
        WIDE3,
    ):  # of this width, random weights of that size would drown everything in rounding
        params = jax.tree.map(lambda x: x * 0.1 if x.ndim > 1 and x.shape[-1] > 64 else x, params)
    save_hf(folder / "model", config, params)
    theirs = in_transformers(folder / "model")
    for text, images in zip(texts, image_groups, strict=True):
        expected = theirs(**their_inputs(config.vision, text, images)).logits
        result = qwen2_5_vl.logits(config, params, text[None], images)
        assert np.abs(expected.detach().numpy()).max() > 1
        np.testing.assert_allclose(result, expected.detach().numpy(), atol=1e-4, rtol=0)

    positions, packed_images = qwen2_5_vl.prepare_inputs(config, texts[0][None], image_groups[0])
    tokens = texts[0][None]

    def loss(params: decoder.Params) -> jax.Array:
        hidden = decoder.hidden_states(config, params, tokens, positions, images=packed_images)
        logp = jax.nn.log_softmax(decoder.score_tokens(config, params, hidden)[:, :-1])
        return -jnp.take_along_axis(logp, tokens[:, 1:, None], axis=-1).mean()

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    flat = theirs(**their_inputs(config.vision, texts[0], image_groups[0])).logits[0, :-1]
    their_loss = torch.nn.functional.cross_entropy(flat, torch.tensor(texts[0][1:]))
    their_loss.backward()
    assert float(value) == pytest.approx(their_loss.item(), rel=1e-5)
    check_gradient(gradient, theirs, folder / "gradient")


@pytest.mark.parametrize("config", [VL, VL3], ids=MODELS)
def test_logits_and_gradients_equal_those_of_transformers(
    config: DecoderConfig, tmp_path: pathlib.Path
) -> None:
    check_logits_and_gradients(config, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("config", [WIDE, WIDE3], ids=MODELS)
def test_logits_and_gradients_of_the_published_widths(
    config: DecoderConfig, tmp_path: pathlib.Path
) -> None:
    check_logits_and_gradients(config, tmp_path)


@pytest.mark.parametrize("config", [VL, VL3], ids=MODELS)
def test_packed_rows_with_images_equal_the_texts_alone(config: DecoderConfig) -> None:
    """Two texts, three images of three sizes, one row; the second text uses the first one's first
    image again.
    """
    vision = qwen2_5_vl.vision_config(config)
    params, (texts, image_groups) = random_params(config), texts_and_images(vision)
    again = np.array(expand_image_tokens(vision, TEXTS[1], [token_grid(vision, IMAGES[0])]))
    texts = [*texts, again]
    image_groups = [*image_groups, IMAGES[:1]]
    prepared = [
        prepare_images(vision, text, group) for text, group in zip(texts, image_groups, strict=True)
    ]
    images, index = distinct_images(prepared)
    assert len(images) == 3
    packed = jax.jit(decoder.hidden_states, static_argnums=(0, 5))(
        config,
        params,
        np.concatenate(texts)[None],
        np.concatenate([x.layout.positions for x in prepared], axis=1)[:, None],
        np.repeat([1, 2, 3], [len(text) for text in texts])[None],
        decoder.Execution(remat="full"),
        pack_images(
            images,
            np.concatenate(index)[None],
            number=4,
            longest=max(len(x.patches) for x in images),
            values=vision.patch_values,
        ),
    )
    result = np.split(
        np.asarray(decoder.score_tokens(config, params, packed))[0],
        np.cumsum([len(text) for text in texts])[:-1],
    )
    for text, group, row in zip(texts, image_groups, result, strict=True):
        np.testing.assert_allclose(
            row, qwen2_5_vl.logits(config, params, text[None], group)[0], atol=1e-4
        )


def towers_gradient(config: VisionConfig, remat: str) -> tuple[str, Images]:
    """Returns the text of the gradient of a tower, and its images."""
    shape = dataclasses.replace(VL, vision=config)
    image = prepare_images(config, texts_and_images(config)[0][1], IMAGES[2:])
    packed_images = pack_images(
        image.images,
        image.layout.index[None],
        number=1,
        longest=len(image.images[0].patches),
        values=config.patch_values,
    )

    def loss(tower: Any) -> jax.Array:
        return encode_images(
            config,
            tower,
            packed_images.patches,
            packed_images.grid,
            dtype=jnp.float32,
            wrap=Execution(remat=remat).add_remat,
        ).sum()

    params = decoder.abstract_params(shape)["vision"]
    return str(jax.make_jaxpr(jax.grad(loss))(params)), packed_images


def test_with_remat_offload_the_inputs_of_the_towers_layers_are_in_host_memory() -> None:
    text, packed_images = towers_gradient(VISION, "offload")
    patches = packed_images.patches.shape[1]
    assert f"f32<host>[{VISION.depth},1,{patches},{VISION.hidden_size}]" in text


def test_the_one_layer_of_a_tower_is_no_loop() -> None:
    """It is not computed again before its gradient is known; see `Execution.add_remat`."""
    text, _ = towers_gradient(VISION, "full")
    assert "prevent_cse=False" in text
    text, _ = towers_gradient(dataclasses.replace(VISION, depth=1, full_layers=(0,)), "full")
    assert "prevent_cse=True" in text


# With an output matrix of its own Qwen3-VL draws several tokens from these weights.
@pytest.mark.parametrize(
    "config", [VL, dataclasses.replace(VL3, tie_word_embeddings=False)], ids=MODELS
)
def test_greedy_decoding_equals_that_of_transformers(
    config: DecoderConfig, tmp_path: pathlib.Path
) -> None:
    """Token for token, behind an image that takes 72 or 90 tokens and 9 or 10 positions."""
    vision = qwen2_5_vl.vision_config(config)
    params, (texts, image_groups) = random_params(config), texts_and_images(vision)
    text = texts[0]
    images = image_groups[0]
    steps = 12
    save_hf(tmp_path / "model", config, params)
    their = their_inputs(vision, text, images)
    expected = in_transformers(tmp_path / "model").generate(
        **their, max_new_tokens=steps, do_sample=False
    )
    positions, packed_images = qwen2_5_vl.prepare_inputs(config, text[None], images)
    shift = locate_images(vision, text, [token_grid(vision, image) for image in images]).shift
    assert shift < -60
    cache = decoding.init_cache(config, 1, len(text) + steps)
    lengths = np.array([len(text)])
    slot = np.array([0])
    scores, cache = jax.jit(decoding.prefill, static_argnums=0)(
        config, params, cache, text[None], lengths, slot, positions, packed_images
    )
    decode = jax.jit(decoding.decode, static_argnums=0)
    drawn: list[int] = []
    for step in range(steps):
        drawn.append(int(scores[0].argmax()))
        place = jnp.array([len(text) + step])
        tokens = jnp.array(drawn[-1:])
        scores, cache = decode(config, params, cache, tokens, place, jnp.array([shift]))
    assert drawn == expected[0, len(text) :].tolist()
    assert len(set(drawn)) > 2


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (VL, ("visual.patch_embed.proj.weight", "model.layers.1.mlp.up_proj.weight")),
        (
            VL3,
            (
                "model.visual.deepstack_merger_list.1.linear_fc2.bias",
                "model.language_model.layers.1.self_attn.q_norm.weight",
            ),
        ),
    ],
    ids=MODELS,
)
def test_folders_in_both_layouts_and_in_shards_are_the_same_model(
    config: DecoderConfig, published: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    vision = dataclasses.replace(qwen2_5_vl.vision_config(config), max_pixels=100_352)
    config = dataclasses.replace(config, vision=vision, tie_word_embeddings=False)
    params = random_params(config)
    save_hf(tmp_path / "model", config, params, max_shard_bytes=100_000)
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 2
    again, copied_params = load_hf(tmp_path / "model")
    assert again == config
    safetensors = pytest.importorskip("safetensors.numpy")
    tensors: dict[str, np.ndarray] = {}
    for file in (tmp_path / "model").glob("*.safetensors"):
        tensors |= safetensors.load_file(file)
        file.unlink()
    (tmp_path / "model" / "model.safetensors.index.json").unlink()
    assert tensors.keys() >= {*published, "lm_head.weight"}
    names = {"visual.": "model.visual.", "model.": "model.language_model.", "lm_head.": "lm_head."}
    if vision.nests_decoder:
        names = {new: old for old, new in names.items()}
    in_memory = {
        new + name.removeprefix(old): tensor
        for name, tensor in tensors.items()
        for old, new in names.items()
        if name.startswith(old)
    }
    safetensors.save_file(in_memory, tmp_path / "model" / "model.safetensors")
    _, third = load_hf(tmp_path / "model")
    for (path, ours), prepared, copy in zip(
        jax.tree_util.tree_leaves_with_path(params),
        jax.tree.leaves(copied_params),
        jax.tree.leaves(third),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, prepared, err_msg=str(path))
        np.testing.assert_array_equal(ours, copy, err_msg=str(path))


@pytest.mark.parametrize("name", PUBLISHED_VISION)
def test_published_shapes_are_read_back_and_counted(name: str, tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = PUBLISHED_VISION[name]
    (tmp_path / "config.json").write_text(json.dumps(config_json(config, "bfloat16")))
    assert read_config(tmp_path) == config
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(theirs)
    assert decoder.param_count(config) == sum(p.numel() for p in model.parameters())


def test_a_tower_that_this_code_does_not_have_is_refused(tmp_path: pathlib.Path) -> None:
    content = config_json(VL3, "float32")

    def read(**changes: Any) -> None:
        tower = content["vision_config"] | changes
        (tmp_path / "config.json").write_text(json.dumps(content | {"vision_config": tower}))
        read_config(tmp_path)

    read()
    for changes, message in (
        ({"num_position_embeddings": 24}, "num_position_embeddings=24 must be a square"),
        ({"deepstack_visual_indexes": [2, 1]}, r"\[2, 1\] must be ascending indices of 4 layers"),
        ({"deepstack_visual_indexes": [1, 4]}, r"\[1, 4\] must be ascending indices of 4 layers"),
        ({"deepstack_visual_indexes": [0, 1, 2]}, "must be fewer than num_hidden_layers=3"),
        ({"hidden_act": "gelu"}, "vision_config.hidden_act='gelu' is not supported"),
    ):
        with pytest.raises(InputError, match=message):
            read(**changes)


def test_images_that_do_not_fit_the_text_or_the_model_are_refused() -> None:
    params = random_params(VL)
    with pytest.raises(InputError, match="places for 0 of 1 images"):
        qwen2_5_vl.logits(VL, params, np.array([[1, 2]]), IMAGES[:1])
    with pytest.raises(InputError, match="4 places for the 6 features"):
        qwen2_5_vl.logits(VL, params, np.array([[1, 55, 55, 55, 55]]), IMAGES[:1])
    text = SMALL["gqa2_untied"]
    with pytest.raises(InputError, match="reads text alone"):
        qwen2_5_vl.logits(text, random_params(text), np.array([[1, 2]]), IMAGES[:1])
