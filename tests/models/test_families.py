"""Layers without rotation and with sliding windows: decoding, adapters, packed rows, exports."""

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
from gigpo_jax.models.chunks import extend
from gigpo_jax.models.decoder import Execution, Params
from gigpo_jax.models.execution import REMAT_POLICIES
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.published import PUBLISHED_TEXT
from tests.engines.jax.random_model import run
from tests.models.shapes import SMALL, layers_apart, on_cpus, random_params

NAMES = ("smollm3", "gemma3")
LENGTH = 24  # four windows
TOKENS = np.random.default_rng(3).integers(1, 61, (2, LENGTH))


# The cache of a window of 6 tokens has room for as much again and a chunk of 5, or for all texts.
@pytest.mark.parametrize(("name", "chunk"), [("smollm3", 5), ("gemma3", 5), ("gemma3", 300)])
@pytest.mark.parametrize("form", ["stacked", "apart", pytest.param("cpu", marks=pytest.mark.slow)])
def test_prompts_chunks_and_single_tokens_equal_the_whole_text(
    name: str, chunk: int, form: str
) -> None:
    config = SMALL[name]
    params = random_params(config)
    for_cpu = form == "cpu"
    atol = 0.4 if for_cpu else 5e-5  # of bfloat16 and float32
    expected = next_tokens.logits(config, params, TOKENS)
    if form == "apart":
        params = layers_apart(config, params)
    if for_cpu:
        config, params = on_cpus(config, params)
    # Longer than a block of attention over the cache.
    dtype = BITS if for_cpu else jnp.float32
    cache = decoding.init_cache(config, 2, 300, dtype, prefill_chunk=chunk)
    if name == "gemma3":
        windows = (3, {5: 17, 300: 300}[chunk])
        assert (cache.key.shape[::3], cache.windows.key.shape[::3]) == ((1, 300), windows)
    slots = np.array([1, 0])
    starts = np.zeros(2, np.int32)
    lengths = np.array([9, 9])
    prompts = np.pad(TOKENS[:, :9], [(0, 0), (0, 5)])
    read, cache = jax.jit(functools.partial(decoding.prefill, config))(
        params, cache, prompts, lengths, slots
    )
    np.testing.assert_allclose(read, expected[:, 8], atol=atol)
    read_chunk = jax.jit(functools.partial(extend, config))
    for start in (9, 14):
        read, cache = read_chunk(
            params, cache, TOKENS[:, start : start + 5], starts + 5, slots, starts + start
        )
        np.testing.assert_allclose(read, expected[:, start + 4], atol=atol)
    decode = jax.jit(functools.partial(decoding.decode, config))
    for position in range(19, LENGTH):
        out, cache = decode(params, cache, TOKENS[slots, position], starts + position)
        np.testing.assert_allclose(out[slots], expected[:, position], atol=atol)


SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
GEMMA = {
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "model_type": "gemma3_text",
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "sliding_window": 512,
    "vocab_size": 262144,
}
KINDS = ["sliding_attention"] * 5 + ["full_attention"]
ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
SMOLLM3 = {
    "bos_token_id": 128000,
    "eos_token_id": 128012,
    "max_position_embeddings": 65536,
    "model_type": "smollm3",
    "num_key_value_heads": 4,
    "rope_theta": 5e6,
    "use_sliding_window": False,
    "vocab_size": 128256,
}


@pytest.mark.parametrize(
    ("name", "sizes", "content"),
    [
        ("gemma-3-270m-it", (640, 2048, 18, 4), GEMMA | {"layer_types": KINDS * 3}),
        # Older and newer folders.
        ("gemma-3-1b-it", (1152, 6912, 26, 4), GEMMA | {"sliding_window_pattern": 6}),
        ("gemma-3-1b-it", (1152, 6912, 26, 4), GEMMA | {"rope_parameters": ROPES}),
        ("SmolLM3-3B", (2048, 11008, 36, 16), SMOLLM3),
        ("SmolLM3-3B", (2048, 11008, 36, 16), SMOLLM3 | {"no_rope_layers": [1, 1, 1, 0] * 10}),
    ],
)
def test_published_folders_are_read(
    name: str, sizes: tuple[int, ...], content: dict, tmp_path: pathlib.Path
) -> None:
    content = content | dict(zip(SIZES, sizes, strict=True))
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert read_config(tmp_path) == PUBLISHED_TEXT[name]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation='silu' is not supported"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0 is not supported"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ({"layer_types": ["chunked_attention"]}, "must be a list of full_attention and sliding"),
        ({"layer_types": KINDS}, "layer_types of 6 layers beside num_hidden_layers=18"),
    ],
)
def test_other_features_are_refused(changes: dict, message: str, tmp_path: pathlib.Path) -> None:
    content = GEMMA | dict(zip(SIZES, (640, 2048, 18, 4), strict=True)) | changes
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_each_kind_of_layer_has_an_effect(name: str) -> None:
    """A text of one window is the same without windows; a longer one is not."""
    config = SMALL[name]
    params = random_params(config)
    scores = next_tokens.logits(config, params, TOKENS)
    plain = decoder.DecoderConfig(**{**config.__dict__, "layer_types": ()})
    assert np.abs(next_tokens.logits(plain, params, TOKENS) - scores).max() > 0.1
    wide = decoder.DecoderConfig(**{**config.__dict__, "sliding_window": LENGTH})
    difference = np.abs(next_tokens.logits(wide, params, TOKENS) - scores).max(axis=(0, 2))
    window = config.sliding_window or LENGTH
    assert difference[:window].max() < 1e-4
    assert (difference[window:] > 1e-3).all()


@pytest.mark.parametrize("name", NAMES)
def test_adapters_equal_changed_kernels(name: str) -> None:
    config = SMALL[name]
    params = random_params(config)
    settings = lora.LoraConfig(rank=4, alpha=8.0)
    adapter = lora.init_adapter(config, settings, jax.random.key(0))
    adapter = jax.tree.map(lambda leaf: leaf + 0.1, adapter)
    attached = lora.attach_adapter(params, adapter, settings.scale)
    result = next_tokens.logits(config, attached, TOKENS)
    merged = lora.merge_adapter(jax.tree.map(jnp.copy, params), adapter, settings.scale)
    np.testing.assert_allclose(result, next_tokens.logits(config, merged, TOKENS), atol=2e-4)
    assert np.abs(result - next_tokens.logits(config, params, TOKENS)).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("remat", REMAT_POLICIES)
def test_remat_of_several_kinds_equals_plain(remat: str) -> None:
    config = SMALL["gemma3"]

    def loss(params: Params, remat: str) -> jax.Array:
        execution = Execution(remat=remat)
        return jnp.square(decoder.hidden_states(config, params, TOKENS, execution=execution)).mean()

    gradient = jax.jit(jax.grad(loss), static_argnames="remat")
    params = random_params(config)
    plain = gradient(params, remat="none")
    for again, expected in zip(
        jax.tree.leaves(gradient(params, remat=remat)), jax.tree.leaves(plain), strict=True
    ):
        np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-6)


def test_trees_of_texts_longer_than_a_window_are_refused() -> None:
    config = SMALL["gemma3"]
    trees = np.stack([np.ones(LENGTH), np.full(LENGTH, LENGTH)]).astype(np.int32)[None]
    with pytest.raises(ValueError, match="segments of trees have no sliding windows"):
        decoder.hidden_states(config, random_params(config), TOKENS[:1], None, trees)


@pytest.mark.parametrize(
    "name",
    [
        *NAMES,
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("gqa4_tied", "moe", "llama3", "mistral_yarn")
        ),
    ],
)
def test_transformers_continues_an_exported_model_alike(name: str, tmp_path: pathlib.Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = SMALL[name]
    params = random_params(config)
    save_hf(tmp_path, config, params)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    start = 10
    expected = theirs.generate(
        torch.tensor(TOKENS[:, :start]),
        attention_mask=torch.ones((2, start), dtype=torch.long),
        max_new_tokens=LENGTH - start,
        do_sample=False,
        pad_token_id=0,
    ).numpy()
    score = jax.jit(functools.partial(next_tokens.logits, config))
    texts = np.pad(TOKENS[:, :start], [(0, 0), (0, LENGTH - start)])
    for position in range(start, LENGTH):
        texts[:, position] = np.asarray(score(params, texts))[:, position - 1].argmax(-1)
    np.testing.assert_array_equal(texts, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [0, 8])
def test_the_engine_has_the_learners_log_probabilities(name: str, chunk: int) -> None:
    config = SMALL[name]
    params = random_params(config)
    settings = EngineSettings(
        slots=3,
        max_length=48,
        prefill_buckets=() if chunk else (48,),
        prefill_rows=(2,),
        prefill_chunk=chunk,
        decode_steps=4,
    )
    prompts = [[7, 3, 9] * 5, [7, 3, 9] * 5 + [1, 2], [4], [5] * 20]
    requests = [
        (prompt, SamplingParams(max_tokens=20, key=request_key(0, 0, 0, 0, index)))
        for index, prompt in enumerate(prompts)
    ]
    with JaxEngine(config, params, settings) as engine:
        completions = run(*(engine.generate(*request) for request in requests))
    for prompt, completion in zip(prompts, completions, strict=True):
        text = np.array([[*prompt, *completion.tokens]])
        logprobs = jax.nn.log_softmax(
            next_tokens.logits(config, params, text)[0, len(prompt) - 1 : -1]
        )
        expected = np.take_along_axis(np.asarray(logprobs), completion.tokens[:, None], 1)[:, 0]
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
