"""Qwen3.5: decoding, packed rows, adapters, folders of transformers and what is refused."""

import dataclasses
import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import SamplingParams, request_key
from gigpo_jax.engines.jax.jax_engine import EngineSettings, JaxEngine
from gigpo_jax.models import decoder, decoding, lora, next_tokens
from gigpo_jax.models.cache import BITS
from gigpo_jax.models.chunk_cache import copy_chunks
from gigpo_jax.models.chunks import extend
from gigpo_jax.models.decoder import Execution, Params
from gigpo_jax.models.decoder_config import FULL
from gigpo_jax.models.execution import REMAT_POLICIES
from gigpo_jax.models.files.adapter_file import load_adapter, save_adapter
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.published import PUBLISHED_TEXT
from gigpo_jax.models.window_cache import copy_ends
from tests.engines.jax.random_model import run
from tests.models.shapes import SMALL, on_cpus, random_params

CONFIG = SMALL["qwen3_5"]
# Weights of full size multiply rounding: a norm divides what a head reads, which nearly cancels for
# some tokens. In float32 scores then differ from scores in float64 by 4e-4 (whole texts, single
# tokens and transformers alike), with these weights by 1e-6.
PARAMS = jax.tree.map(lambda leaf: 0.3 * leaf, random_params(CONFIG))
LENGTH = 24
TOKENS = np.random.default_rng(3).integers(1, 61, (2, LENGTH))
SETTINGS = EngineSettings(
    slots=3, max_length=48, prefill_buckets=(48,), prefill_rows=(2,), decode_steps=4
)
ADAPTER = lora.LoraConfig(4, 8.0)
SCORE = jax.jit(functools.partial(next_tokens.logits, CONFIG))


def greedy_texts(params: Params, start: int) -> np.ndarray:
    """Continues `TOKENS[:, :start]` by the forward pass of whole texts."""
    texts = np.pad(TOKENS[:, :start], [(0, 0), (0, LENGTH - start)])
    for position in range(start, LENGTH):
        texts[:, position] = np.asarray(SCORE(params, texts))[:, position - 1].argmax(-1)
    return texts


@pytest.mark.parametrize("for_cpu", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_prompts_and_single_tokens_equal_the_whole_text(for_cpu: bool) -> None:
    config, params = CONFIG, PARAMS

    def check_scores(scores: jax.Array, expected: jax.Array) -> None:
        if for_cpu:
            # The mean error of bfloat16 is 0.004 everywhere; other texts differ by 0.5.
            assert np.abs(scores - expected).mean() < 0.01
        else:
            np.testing.assert_allclose(scores, expected, atol=1e-5)

    expected = SCORE(params, TOKENS)
    if for_cpu:
        config, params = on_cpus(config, params)
    cache = decoding.init_cache(config, 3, LENGTH, BITS if for_cpu else jnp.float32)
    # A slot that is not empty, and a prompt shorter than the convolution.
    cache = dataclasses.replace(cache, states=jax.tree.map(jnp.ones_like, cache.states))
    slots = np.array([1, 0])
    lengths = np.array([9, 1])
    read, cache = jax.jit(functools.partial(decoding.prefill, config))(
        params, cache, TOKENS[:, :9], lengths, slots
    )
    check_scores(read, expected[np.arange(2), lengths - 1])
    decode = jax.jit(functools.partial(decoding.decode, config))
    for step in range(12):
        positions = lengths + step
        tokens = np.zeros(3, np.int32)
        tokens[slots] = TOKENS[np.arange(2), positions]
        places = np.full(3, LENGTH)
        places[slots] = positions
        out, cache = decode(params, cache, tokens, places)
        check_scores(out[slots], expected[np.arange(2), positions])
    # Nothing is written for a slot without a token.
    assert all((leaf[:, 2] == 1).all() for leaf in jax.tree.leaves(cache.states))


def test_the_engine_has_the_learners_texts_and_log_probabilities() -> None:
    prompts = [[7, 3, 9] * 5, [4], *TOKENS[:, :10].tolist(), [5] * 20]
    temperatures = (1.0, 1.0, 0.0, 0.0, 1.0)
    requests = [
        (
            prompt,
            SamplingParams(
                max_tokens=14, temperature=temperature, key=request_key(0, 0, 0, 0, index)
            ),
        )
        for index, (prompt, temperature) in enumerate(zip(prompts, temperatures, strict=True))
    ]
    with JaxEngine(CONFIG, PARAMS, SETTINGS) as engine:
        completions = run(*(engine.generate(*request) for request in requests))
    texts = [np.array([*prompt, *c.tokens]) for prompt, c in zip(prompts, completions, strict=True)]
    np.testing.assert_array_equal(texts[2:4], greedy_texts(PARAMS, 10))
    # All texts in one row.
    row, segments, positions = (np.zeros((1, 128), np.int32) for _ in range(3))
    places = np.cumsum([0, *map(len, texts)])
    for number, text in enumerate(texts):
        place = slice(places[number], places[number + 1])
        row[0, place], segments[0, place], positions[0, place] = text, number + 1, range(len(text))
    logprobs = np.asarray(jax.nn.log_softmax(SCORE(PARAMS, row, positions, segments)))[0]
    for number in (0, 1, 4):
        ends = slice(places[number] + len(prompts[number]) - 1, places[number + 1] - 1)
        tokens = completions[number].tokens
        expected = logprobs[ends][np.arange(len(tokens)), tokens]
        np.testing.assert_allclose(completions[number].logprobs, expected, atol=1e-5)


def test_transformers_continues_an_exported_model_alike(tmp_path: pathlib.Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    save_hf(tmp_path, CONFIG, PARAMS)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    expected = theirs.generate(
        torch.tensor(TOKENS[:, :10]),
        attention_mask=torch.ones((2, 10), dtype=torch.long),
        max_new_tokens=LENGTH - 10,
        do_sample=False,
        pad_token_id=0,
    ).numpy()
    np.testing.assert_array_equal(greedy_texts(PARAMS, 10), expected)


def test_the_text_part_of_a_multimodal_folder_is_read(tmp_path: pathlib.Path) -> None:
    transformers = pytest.importorskip("transformers")
    save_hf(tmp_path / "text", CONFIG, PARAMS)
    text = transformers.AutoConfig.from_pretrained(tmp_path / "text")
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": CONFIG.hidden_size,
        "num_position_embeddings": 16,
    }
    config = transformers.Qwen3_5Config(
        text_config=text.to_dict(), vision_config=vision, tie_word_embeddings=True
    )
    theirs = transformers.Qwen3_5ForConditionalGeneration(config)
    theirs.save_pretrained(tmp_path / "whole")
    shape, params = load_hf(tmp_path / "whole")
    assert shape == CONFIG
    weights = dict(theirs.model.language_model.named_parameters())
    np.testing.assert_array_equal(
        params["delta_layers"]["delta_inputs"]["kernel"][2],
        weights["layers.3.linear_attn.in_proj_qkv.weight"].detach().numpy().T,
    )
    np.testing.assert_array_equal(
        params["layers"]["query"]["kernel"][0],
        weights["layers.2.self_attn.q_proj.weight"].detach().numpy().T,
    )


ROPE = {
    "mrope_interleaved": True,
    "mrope_section": [11, 11, 10],
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000000,
    "rope_type": "default",
}
PUBLISHED = {
    "attn_output_gate": True,
    "eos_token_id": 248044,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "linear_num_value_heads": 16,
    "max_position_embeddings": 262144,
    "model_type": "qwen3_5_text",
    "mtp_num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rope_parameters": ROPE,
    "vocab_size": 248320,
}


def write_config(folder: pathlib.Path, **changes: object) -> pathlib.Path:
    content = {"text_config": PUBLISHED | changes, "model_type": "qwen3_5"}
    content |= {"tie_word_embeddings": True, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def test_published_folders_are_read(tmp_path: pathlib.Path) -> None:
    assert read_config(write_config(tmp_path)) == PUBLISHED_TEXT["Qwen3.5-0.8B"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_output_gate": False}, "attn_output_gate must be true"),
        ({"layer_types": ["chunked_attention"]}, "must be a list of full_attention and linear"),
        ({"layer_types": ["linear_attention"] * 24}, "must name a layer of full_attention"),
        ({"linear_num_key_heads": 5}, "linear_num_key_heads=5 must divide linear_num_value_heads"),
    ],
)
def test_other_features_are_refused(changes: dict, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=message):
        read_config(write_config(tmp_path, **changes))


@pytest.mark.parametrize("for_cpu", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_chunks_equal_the_whole_text_and_leave_checkpoints(for_cpu: bool) -> None:
    """Chunks of a prompt in one call, out of a chunk's reach of the next one, and a shared part."""
    config, params = CONFIG, PARAMS
    expected = SCORE(params, TOKENS)
    atol = 0.1 if for_cpu else 1e-5
    if for_cpu:
        config, params = on_cpus(config, params)
    cache = decoding.init_cache(
        config, 3, LENGTH, BITS if for_cpu else jnp.float32, prefill_chunk=4
    )
    cache = dataclasses.replace(cache, states=jax.tree.map(jnp.ones_like, cache.states))
    chunk = jax.jit(functools.partial(extend, config))
    tokens = TOKENS[:, :20].reshape(2, 5, 4)
    # Two chunks of text 0 in slot 2, one of text 1 in slot 0, and a row that is dropped.
    rows = np.stack([tokens[0, 0], tokens[0, 1], tokens[1, 0], tokens[1, 0]])
    lengths = np.array([4, 4, 2, 4])
    starts = np.array([0, 4, 0, 4])
    slots = np.array([2, 2, 0, 3])
    read, cache = chunk(params, cache, rows, lengths, slots, starts, np.array([3, 3, 0, 3]))
    np.testing.assert_allclose(read[:2], expected[0, [3, 7]], atol=atol)
    np.testing.assert_allclose(read[2], expected[1, 1], atol=atol)
    # The last chunk of text 0 ends in its middle.
    read, cache = chunk(
        params,
        cache,
        *(np.stack([row] * 4) for row in (tokens[0, 2], 3)),
        slots=np.array([2, 3, 3, 3]),
        starts=np.full(4, 8),
        ends=np.array([2, 3, 3, 3]),
    )
    np.testing.assert_allclose(read[0], expected[0, 10], atol=atol)
    # Slot 1 continues text 0 behind its whole chunks, as text 0 does behind its last token.
    cache = copy_chunks(cache, np.array([2, 2]), np.array([1, 1]), np.array([0, 4]), 4)
    cache = copy_ends(cache, np.array([2, 0]), np.array([1, 3]))
    read, cache = chunk(
        params,
        cache,
        np.stack([tokens[0, 2], TOKENS[0, 11:15]] * 2),
        np.full(4, 4),
        np.array([1, 2, 3, 3]),
        np.array([8, 11, 8, 8]),
    )
    np.testing.assert_allclose(read[:2], expected[0, [11, 14]], atol=atol)
    # Nothing is written for slots without a row.
    assert (cache.states.rule[:, 0] != 1).any()


def test_trees_are_refused() -> None:
    trees = np.stack([np.ones(LENGTH), np.full(LENGTH, LENGTH)]).astype(np.int32)[None]
    with pytest.raises(ValueError, match="segments of trees have no states"):
        decoder.hidden_states(CONFIG, PARAMS, TOKENS[:1], None, trees)


def test_adapters_equal_changed_kernels_and_come_back(tmp_path: pathlib.Path) -> None:
    adapter = lora.init_adapter(CONFIG, ADAPTER, jax.random.key(0))
    adapter = jax.tree.map(lambda leaf: leaf + 0.1, adapter)
    assert adapter["delta_layers"].keys() == {"gate", "up", "down"}
    attached = lora.attach_adapter(PARAMS, adapter, ADAPTER.scale)
    merged = lora.merge_adapter(jax.tree.map(jnp.copy, PARAMS), adapter, ADAPTER.scale)
    np.testing.assert_allclose(SCORE(attached, TOKENS), SCORE(merged, TOKENS), atol=1e-3, rtol=1e-3)
    again = lora.detach_adapter(lora.insert_pairs(PARAMS, adapter))
    jax.tree.map(np.testing.assert_array_equal, again, adapter)

    numbers = lora.layer_numbers(CONFIG)
    save_adapter(tmp_path, ADAPTER, adapter, base="", numbers=numbers)
    jax.tree.map(np.testing.assert_array_equal, load_adapter(tmp_path, CONFIG, ADAPTER), adapter)
    safetensors = pytest.importorskip("safetensors.numpy")
    names = safetensors.load_file(tmp_path / "adapter_model.safetensors")
    prefix = "base_model.model.model.layers"
    assert f"{prefix}.2.self_attn.q_proj.lora_A.weight" in names
    np.testing.assert_array_equal(
        names[f"{prefix}.3.mlp.up_proj.lora_B.weight"],
        np.asarray(adapter["delta_layers"]["up"]["lora_b"][2]).T,
    )
    assert len(names) == 2 * (4 + 4 * 3)


@pytest.mark.slow
@pytest.mark.parametrize("remat", REMAT_POLICIES)
def test_remat_equals_plain(remat: str) -> None:
    def loss(params: Params, remat: str) -> jax.Array:
        execution = Execution(remat=remat)
        return jnp.square(decoder.hidden_states(CONFIG, params, TOKENS, execution=execution)).mean()

    gradient = jax.jit(jax.grad(loss), static_argnames="remat")
    for again, expected in zip(
        jax.tree.leaves(gradient(PARAMS, remat=remat)),
        jax.tree.leaves(gradient(PARAMS, remat="none")),
        strict=True,
    ):
        # The inverse of the chunks' triangles enlarges the rounding of another order of sums.
        size = float(jnp.abs(expected).max())
        np.testing.assert_allclose(again, expected, rtol=0, atol=5e-4 * size)


def test_layers_differ_by_kind() -> None:
    """The order of the kinds has an effect, and each layer has its own weights."""
    runs = [run[:5] for run in CONFIG.layer_spans]
    assert runs == [
        ("delta_layers", 0, 2, 0, 0),
        ("layers", 0, 1, 2, 0),
        ("delta_layers", 2, 3, 3, 2),
    ]
    other = dataclasses.replace(
        CONFIG, layer_types=(FULL, *CONFIG.layer_types[:2], CONFIG.layer_types[3])
    )
    scores = jax.jit(functools.partial(next_tokens.logits, other))(PARAMS, TOKENS)
    difference = np.abs(scores - SCORE(PARAMS, TOKENS))
    assert difference.max() > 0.1


def test_a_layer_that_is_no_loop_is_not_computed_again_before_its_gradient_is_known() -> None:
    """Else the arrays of all such layers would be there at once."""
    params = decoder.abstract_params(CONFIG)
    tokens = jax.ShapeDtypeStruct((1, 8), jnp.int32)

    def loss(params: decoder.Params, tokens: jax.Array) -> jax.Array:
        execution = Execution(remat="full")
        return decoder.hidden_states(CONFIG, params, tokens, execution=execution).sum()

    text = jax.jit(jax.grad(loss)).lower(params, tokens).as_text()
    alone = sum(run.stop - run.start == 1 for run in CONFIG.layer_spans)
    assert text.count("optimization_barrier") == alone > 0
