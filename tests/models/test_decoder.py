"""What must hold for any weights: causal, packed equals unpacked, cached equals uncached, remat
equals plain.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.models import decoder, decoding, next_tokens, on_cpu
from gigpo_jax.models.cache import BITS, KVCache
from gigpo_jax.models.chunks import extend
from gigpo_jax.models.decoder import DecoderConfig, Params
from gigpo_jax.models.execution import REMAT_POLICIES
from gigpo_jax.models.families.family import find_family
from gigpo_jax.models.published import PUBLISHED, PUBLISHED_TEXT
from tests.models.shapes import SMALL, on_cpus, random_params

CONFIG = SMALL["gqa7_untied"]
PARAMS = random_params(CONFIG)
LENGTHS = (7, 12, 5)
PROMPTS = [
    np.random.default_rng(i).integers(0, CONFIG.vocab_size, length)
    for i, length in enumerate(LENGTHS)
]


@functools.partial(jax.jit, static_argnames=("dtype",))
def run(
    tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array, dtype: str | None = None
) -> jax.Array:
    return next_tokens.logits(CONFIG, PARAMS, tokens, positions, segment_ids, dtype=dtype)


def rows(prompts: list[list[np.ndarray]], length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Packs each inner list into one row: tokens, positions, segment ids; the rest is padding."""
    tokens, positions, segments = (np.zeros((len(prompts), length), np.int32) for _ in range(3))
    for row, packed_prompts in enumerate(prompts):
        start = 0
        for number, segment in enumerate(packed_prompts, 1):
            end = start + len(segment)
            tokens[row, start:end], positions[row, start:end] = segment, np.arange(len(segment))
            segments[row, start:end], start = number, end
    return tokens, positions, segments


# As published: https://huggingface.co/Qwen/Qwen2.5-7B-Instruct,
# https://huggingface.co/Qwen/Qwen3-8B, the smaller ones; the others by their names there.
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("0.5b", 494_032_768),
        ("1.5b", 1_543_714_304),
        ("3b", 3_085_938_688),
        ("7b", 7_615_616_512),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gemma-3-270m-it", 268_098_176),
        ("gemma-3-1b-it", 999_885_952),
        ("SmolLM2-135M-Instruct", 134_515_008),
        ("SmolLM2-360M-Instruct", 361_821_120),
        ("SmolLM2-1.7B-Instruct", 1_711_376_384),
        ("Llama-3.2-1B-Instruct", 1_235_814_400),
        ("Llama-3.2-3B-Instruct", 3_212_749_824),
        ("Mistral-7B-Instruct-v0.3", 7_248_023_552),
        ("SmolLM3-3B", 3_075_098_624),
        ("Qwen3.5-0.8B", 752_393_024),
        ("Qwen3.5-9B", 8_953_803_264),
    ],
)
def test_published_shapes(name: str, count: int) -> None:
    config = (PUBLISHED | PUBLISHED_TEXT)[name]
    assert decoder.param_count(config) == count
    params = decoder.abstract_params(config, jnp.bfloat16)
    tokens = jax.ShapeDtypeStruct((2, 16), jnp.int32)
    out = jax.eval_shape(functools.partial(next_tokens.logits, config), params, tokens)
    assert (out.shape, out.dtype) == ((2, 16, config.vocab_size), jnp.float32)
    cache = jax.eval_shape(lambda: decoding.init_cache(config, 8, 64, jnp.bfloat16))
    slots = jax.ShapeDtypeStruct((8,), jnp.int32)
    out, new_cache = jax.eval_shape(
        functools.partial(decoding.decode, config), params, cache, slots, slots
    )
    assert (out.shape, new_cache) == ((8, config.vocab_size), cache)


@pytest.mark.parametrize("name", SMALL)
def test_axes_are_named_like_the_parameters(name: str) -> None:
    config = SMALL[name]
    sizes = {
        "layers": config.num_layers,
        "vocab": config.vocab_size,
        "embed": config.hidden_size,
        "heads": config.num_heads * config.head_dim,
        "kv_heads": config.num_kv_heads * config.head_dim,
        "head": config.head_dim,
        "mlp": config.intermediate_size,
    }
    if config.experts is not None:
        sizes |= {
            "expert": config.experts.count,
            "expert_mlp": config.experts.width,
            "router": config.experts.count,
        }

    def size(path: tuple, axes: tuple[str, ...], leaf: jax.ShapeDtypeStruct) -> tuple[int, ...]:
        depth = len(config.layer_numbers(path[0].key))
        lengths = sizes | {"layers": depth}
        if find_family(config.model_type).gated_attention and "query" in [key.key for key in path]:
            lengths["heads"] *= 2
        # Axes of layers without attention are of any size: none of them is split.
        return tuple(
            leaf.shape[number] if axis == "delta" else lengths[axis]
            for number, axis in enumerate(axes)
        )

    shapes = decoder.abstract_params(config)
    named = jax.tree_util.tree_map_with_path(
        size, decoder.logical_axes(config), shapes, is_leaf=lambda axes: isinstance(axes, tuple)
    )
    assert named == jax.tree.map(lambda leaf: leaf.shape, shapes)


def test_init_is_seeded_and_of_the_stated_spread() -> None:
    config = DecoderConfig(300, 64, 96, 2, 4, 2, 16)
    first, second = (
        decoder.init_params(config, jax.random.key(seed), jnp.bfloat16) for seed in (0, 1)
    )
    kernel = first["layers"]["gate"]["kernel"].astype(jnp.float32)
    assert kernel.std() == pytest.approx(0.02, rel=0.05)
    assert abs(jnp.corrcoef(kernel[0].ravel(), kernel[1].ravel())[0, 1]) < 0.05  # layers differ
    assert not np.array_equal(first["embed"], second["embed"])
    np.testing.assert_array_equal(
        first["embed"], decoder.init_params(config, jax.random.key(0), jnp.bfloat16)["embed"]
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(first)} == {jnp.dtype(jnp.bfloat16)}
    assert decoder.output_embedding(config, first) is first["embed"]
    assert decoder.output_embedding(CONFIG, PARAMS) is PARAMS["head"]


def test_causal() -> None:
    tokens, positions, segments = rows([[PROMPTS[1]], [PROMPTS[1]]], 12)
    tokens[1, 8:] = (tokens[1, 8:] + 1) % CONFIG.vocab_size
    out = run(tokens, positions, segments)
    np.testing.assert_array_equal(out[0, :8], out[1, :8])
    assert np.abs(out[0, 8:] - out[1, 8:]).max(axis=-1).min() > 1e-3


def test_packed_equals_unpacked_and_padding_is_inert() -> None:
    packed = rows([[PROMPTS[0], PROMPTS[1], PROMPTS[2]]], 30)
    alone = rows([[prompt] for prompt in PROMPTS], 30)
    out = run(*packed)
    expected = run(*alone)
    start = 0
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(
            out[0, start : start + length], expected[row, :length], atol=5e-5
        )
        start += length
    packed[0][0, 24:] = 9
    np.testing.assert_array_equal(run(*packed)[0, :24], out[0, :24])
    assert np.isfinite(out).all()


@pytest.mark.slow
@pytest.mark.parametrize("max_segment", [12, 15, 17])
def test_looking_back_as_far_as_the_longest_segment_is_enough(max_segment: int) -> None:
    batch = rows(
        [[PROMPTS[0], PROMPTS[1], PROMPTS[2], PROMPTS[1]], [PROMPTS[1], PROMPTS[1], PROMPTS[0]]], 40
    )

    def loss(params: Params, max_segment: int | None) -> tuple[jax.Array, jax.Array]:
        hidden = decoder.hidden_states(
            CONFIG, params, *batch, decoder.Execution(max_segment=max_segment)
        )
        return (jnp.square(hidden) * (batch[2] > 0)[..., None]).sum(), hidden

    value_and_gradient = jax.jit(jax.grad(loss, has_aux=True), static_argnames="max_segment")
    (gradient, hidden), (expected_gradient, expected) = (
        value_and_gradient(PARAMS, max_segment),
        value_and_gradient(PARAMS, None),
    )
    real = batch[2] > 0
    np.testing.assert_allclose(hidden[real], expected[real], atol=5e-5)
    for first, second in zip(
        jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True
    ):
        np.testing.assert_allclose(first, second, atol=2e-4 * np.abs(second).max())


def test_default_positions_and_segments_are_one_segment_a_row() -> None:
    tokens = np.stack([PROMPTS[1], PROMPTS[1][::-1]])
    explicit = run(*rows([[row] for row in tokens], 12))
    np.testing.assert_allclose(
        jax.jit(functools.partial(next_tokens.logits, CONFIG))(PARAMS, tokens), explicit, atol=5e-5
    )


@pytest.mark.parametrize(
    ("dtype", "for_cpu"),
    [
        ("float32", False),
        pytest.param("bfloat16", False, marks=pytest.mark.slow),
        ("bfloat16", True),
    ],
)
def test_prefill_and_decode_equal_the_full_forward(dtype: str, for_cpu: bool) -> None:
    atol = 1e-5 if dtype == "float32" else 0.15
    expected = run(*rows([[prompt] for prompt in PROMPTS], 12), dtype=dtype)
    cache = decoding.init_cache(CONFIG, 4, 16, BITS if for_cpu else dtype)
    cache = jax.tree.map(lambda leaf: leaf + 7, cache)  # what a slot held before must not matter
    config = CONFIG
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), PARAMS)
    if for_cpu:
        config, params = on_cpus(config, params)
    prefill = jax.jit(functools.partial(decoding.prefill, config, params), donate_argnums=0)
    decode = jax.jit(functools.partial(decoding.decode, config, params), donate_argnums=0)
    read = np.array([4, 6, 1])
    slots = np.array([3, 0, 2])
    padded = np.full((4, 8), 11, np.int32)
    for row, prompt in enumerate(PROMPTS):
        padded[row, : read[row]] = prompt[: read[row]]
    out, cache = prefill(
        cache, padded, np.array([*read, 0]), np.array([*slots, 4])
    )  # slot 4 of 4: dropped
    for row in range(3):
        np.testing.assert_allclose(out[row], expected[row, read[row] - 1], atol=atol)
    np.testing.assert_array_equal(cache.key[:, 1], 7)
    for step in range(max(LENGTHS) - min(read)):
        tokens, positions = (
            np.zeros(4, np.int32),
            np.full(4, 16, np.int32),
        )  # past the end: writes nothing
        live = [row for row in range(3) if read[row] + step < LENGTHS[row]]
        for row in live:
            tokens[slots[row]], positions[slots[row]] = (
                PROMPTS[row][read[row] + step],
                read[row] + step,
            )
        out, cache = decode(cache, tokens, positions)
        for row in live:
            np.testing.assert_allclose(out[slots[row]], expected[row, read[row] + step], atol=atol)
    np.testing.assert_array_equal(cache.key[:, 1], 7)
    assert np.isfinite(out).all()


@pytest.mark.parametrize(
    "read", [decoding.prefill, functools.partial(extend, starts=jnp.zeros(2, jnp.int32))]
)
def test_on_cpus_the_last_layer_computes_its_mlp_for_last_tokens_alone(read: Callable) -> None:
    config, params = on_cpus(CONFIG, PARAMS)
    length = on_cpu.FEW_ROWS  # of two prompts: a product of many rows
    cache = decoding.init_cache(CONFIG, 2, length, BITS)
    lowered = jax.jit(functools.partial(read, config)).lower(
        params, cache, jnp.zeros((2, length), jnp.int32), jnp.full(2, length), jnp.arange(2)
    )
    wide = f"-> tensor<{2 * length}x{CONFIG.intermediate_size}xf32>"
    products = [
        line for line in lowered.as_text().splitlines() if "dot_general" in line and wide in line
    ]
    assert len(products) == 2 * (CONFIG.num_layers - 1)  # gate and up


@pytest.mark.slow
@pytest.mark.parametrize("for_cpu", [False, True])
@pytest.mark.parametrize("name", ["qwen3_tied", "llama3", "mistral_yarn"])
def test_norms_of_heads_and_scaled_rotation_hold_in_decoding(name: str, for_cpu: bool) -> None:
    config = SMALL[name]
    params = random_params(SMALL[name])
    tokens = PROMPTS[1][None]
    expected = next_tokens.logits(config, params, tokens)[:, 11]
    if for_cpu:
        config, params = on_cpus(config, params)
    cache = decoding.init_cache(config, 1, 16, BITS if for_cpu else jnp.float32)
    _, cache = decoding.prefill(
        config, params, cache, tokens[:, :11], np.array([11]), np.array([0])
    )
    out, _ = decoding.decode(config, params, cache, tokens[:, 11], np.array([11]))
    np.testing.assert_allclose(out, expected, atol=0.15 if for_cpu else 1e-5)


def test_on_cpus_a_loop_of_decode_steps_copies_no_embedding() -> None:
    config, params = on_cpus(SMALL["gqa2_untied"], random_params(SMALL["gqa2_untied"]))
    table = jax.ShapeDtypeStruct((100_000, config.hidden_size), jnp.bfloat16)

    def steps(params: Params, cache: KVCache, token: jax.Array) -> tuple:
        def step(index: jax.Array, carry: tuple) -> tuple:
            out, cache = decoding.decode(config, params, carry[1], carry[0], index[None])
            return out.argmax(-1).astype(jnp.int32), cache

        return jax.lax.fori_loop(0, 4, step, (token, cache))

    shapes = jax.eval_shape(
        lambda: (params, decoding.init_cache(config, 1, 16, BITS), jnp.zeros(1, jnp.int32))
    )
    compiled = jax.jit(steps).lower(shapes[0] | {"embed": table}, *shapes[1:]).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < table.size


def test_decoding_copies_no_cache() -> None:
    """A loop of decode steps needs scratch memory far below the size of the cache it carries."""
    cache = jax.eval_shape(lambda: decoding.init_cache(CONFIG, 8, 4096))
    slots = jax.ShapeDtypeStruct((8,), jnp.int32)

    def steps(params: Params, cache: KVCache, tokens: jax.Array, positions: jax.Array) -> tuple:
        def step(index: jax.Array, carry: tuple) -> tuple:
            tokens, cache = carry
            out, cache = decoding.decode(CONFIG, params, cache, tokens, positions + index)
            return out.argmax(-1).astype(jnp.int32), cache

        return jax.lax.fori_loop(0, 4, step, (tokens, cache))

    params = jax.eval_shape(lambda: PARAMS)
    compiled = jax.jit(steps, donate_argnums=1).lower(params, cache, slots, slots).compile()
    memory = compiled.memory_analysis()
    size = 2 * cache.key.size * 4
    assert memory.alias_size_in_bytes >= size
    # One layer's keys and values, read out of the stack, and the scores.
    assert memory.temp_size_in_bytes < 1.5 * size / CONFIG.num_layers


@pytest.mark.slow
@pytest.mark.parametrize("remat", REMAT_POLICIES)
def test_remat_equals_plain(remat: str) -> None:
    batch = rows([PROMPTS], 24)

    def loss(params: Params, remat: str) -> jax.Array:
        return jnp.square(
            decoder.hidden_states(CONFIG, params, *batch, decoder.Execution(remat=remat))
        ).mean()

    gradient = jax.jit(jax.grad(loss), static_argnames="remat")
    for plain, again in zip(
        jax.tree.leaves(gradient(PARAMS, remat="none")),
        jax.tree.leaves(gradient(PARAMS, remat=remat)),
        strict=True,
    ):
        np.testing.assert_allclose(again, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_bfloat16_compute_keeps_float32_parameters() -> None:
    batch = rows([PROMPTS], 24)
    exact = run(*batch)
    coarse = run(*batch, dtype="bfloat16")
    assert 0 < np.abs(exact - coarse).mean() < 0.05 * np.abs(exact).mean()

    def loss(params: Params) -> jax.Array:
        hidden = decoder.hidden_states(CONFIG, params, *batch, decoder.Execution(jnp.bfloat16))
        assert hidden.dtype == jnp.bfloat16
        return jnp.square(hidden.astype(jnp.float32)).mean()

    gradient = jax.jit(jax.grad(loss))(PARAMS)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype(jnp.float32)}


def test_constraint_sees_the_residual_stream_before_and_after_the_layers() -> None:
    shapes: list[tuple[int, ...]] = []

    def constrain(x: jax.Array) -> jax.Array:
        shapes.append(x.shape)
        return x

    batch = rows([PROMPTS], 24)
    jax.eval_shape(
        lambda: decoder.hidden_states(
            CONFIG, PARAMS, *batch, decoder.Execution(constrain=constrain)
        )
    )
    assert set(shapes) == {(1, 24, CONFIG.hidden_size)}
    assert len(shapes) >= 2


@pytest.mark.parametrize(("field", "value"), [("num_kv_heads", 3), ("head_dim", 7)])
def test_impossible_shapes_are_refused(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field}={value}"):
        DecoderConfig(**{**CONFIG.__dict__, field: value})
