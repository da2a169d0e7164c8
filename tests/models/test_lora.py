"""Low-rank adapters: the same as merged weights wherever the model runs, and nothing at the
start.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.models import decoder, decoding, lora, next_tokens, qwen2_5_vl
from gigpo_jax.models.cache import BITS
from gigpo_jax.models.lora import LoraConfig
from gigpo_jax.models.vision.images import expand_image_tokens, token_grid
from tests.models.shapes import SMALL, VL, VL3, on_cpus, random_params
from tests.models.vision.test_images import random_image

SHAPE = SMALL["gqa2_untied"]
ALL = LoraConfig(4, 6.0)
ATTENTION = LoraConfig(4, 6.0, ("q_proj", "k_proj", "v_proj", "o_proj"))
SOME = LoraConfig(2, 8.0, ("q_proj", "down_proj"))
BOTH = LoraConfig(2, 8.0, ("q_proj", "down_proj"), vision=True)
TOKENS = np.random.default_rng(0).integers(0, SHAPE.vocab_size, (3, 17)).astype(np.int32)


def random_adapter(
    shape: decoder.DecoderConfig, config: LoraConfig, seed: int = 1
) -> decoder.Params:
    """An adapter that changes something."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(rng.normal(0, 0.1, x.shape), x.dtype),
        lora.abstract_adapter(shape, config),
    )


def merged_by_hand(params: decoder.Params, adapter: decoder.Params, scale: float) -> decoder.Params:
    """In float64, by numpy."""
    layers = dict(params["layers"])
    for name, pair in adapter["layers"].items():
        kernel = np.asarray(layers[name]["kernel"], np.float64)
        change = np.einsum(
            "lir,lro->lio", *(np.asarray(pair[x], np.float64) for x in ("lora_a", "lora_b"))
        )
        layers[name] = layers[name] | {"kernel": jnp.asarray(kernel + scale * change, jnp.float32)}
    tower = (
        {"vision": merged_by_hand(params["vision"], adapter["vision"], scale)}
        if "vision" in adapter
        else {}
    )
    return params | {"layers": layers} | tower


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("gqa2_untied", ALL),
        ("gqa2_untied", SOME),
        pytest.param("qwen3_tied", ALL, marks=pytest.mark.slow),
        pytest.param("llama3", ALL, marks=pytest.mark.slow),
        pytest.param("mistral_yarn", ALL, marks=pytest.mark.slow),
        ("moe", ATTENTION),
    ],
)
def test_beside_the_kernels_equals_merged_into_them(name: str, config: LoraConfig) -> None:
    shape = SMALL[name]
    params = random_params(shape)
    adapter = random_adapter(shape, config)
    merged = merged_by_hand(params, adapter, config.alpha / config.rank)
    expected = next_tokens.logits(shape, merged, TOKENS)
    attached = lora.attach_adapter(params, adapter, config.scale)
    np.testing.assert_allclose(next_tokens.logits(shape, attached, TOKENS), expected, atol=1e-5)
    assert np.abs(expected - next_tokens.logits(shape, params, TOKENS)).max() > 0.05
    copy = jax.tree.map(jnp.copy, params)
    for name, leaves in lora.merge_adapter(copy, adapter, config.scale)["layers"].items():
        for leaf_name, leaf in leaves.items():
            np.testing.assert_allclose(leaf, merged["layers"][name][leaf_name], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [VL, VL3], ids=["qwen2_5_vl", "qwen3_vl"])
def test_pairs_in_the_vision_tower_equal_merged_ones(shape: decoder.DecoderConfig) -> None:
    params = random_params(shape)
    adapter = random_adapter(shape, BOTH)
    image = random_image(56, 84)
    vision = qwen2_5_vl.vision_config(shape)
    tokens = np.array(
        [expand_image_tokens(vision, [1, 53, 55, 54, 2], [token_grid(vision, image)])]
    )
    merged = merged_by_hand(params, adapter, BOTH.scale)
    expected = qwen2_5_vl.logits(shape, merged, tokens, [image])
    attached = lora.attach_adapter(params, adapter, BOTH.scale)
    np.testing.assert_allclose(
        qwen2_5_vl.logits(shape, attached, tokens, [image]), expected, atol=1e-5
    )
    text = {"layers": adapter["layers"]}
    of_text = qwen2_5_vl.logits(shape, merged_by_hand(params, text, BOTH.scale), tokens, [image])
    assert np.abs(expected - of_text).max() > 0.05
    for original, restored in zip(
        *map(
            jax.tree.leaves,
            (lora.scale_adapter(adapter, BOTH.scale), lora.detach_adapter(attached)),
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(original, restored)
    again = lora.merge_adapter(jax.tree.map(jnp.copy, params), adapter, BOTH.scale)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), again, merged)
    assert lora.adapter_axes(shape, BOTH)["vision"]["layers"]["down"]["lora_a"] == (
        "layers",
        "mlp",
        "rank",
    )


def test_the_adapter_of_the_start_changes_no_bit() -> None:
    params = random_params(SHAPE)
    adapter = lora.init_adapter(SHAPE, ALL, jax.random.key(0))
    attached = lora.attach_adapter(params, adapter, ALL.scale)
    np.testing.assert_array_equal(
        next_tokens.logits(SHAPE, attached, TOKENS), next_tokens.logits(SHAPE, params, TOKENS)
    )
    for pair in adapter["layers"].values():
        bound = pair["lora_a"].shape[1] ** -0.5
        assert 0.9 * bound < float(jnp.abs(pair["lora_a"]).max()) <= bound
    fewer = lora.init_adapter(SHAPE, LoraConfig(4, 1.0, ("up_proj",)), jax.random.key(0))
    np.testing.assert_array_equal(
        fewer["layers"]["up"]["lora_a"], adapter["layers"]["up"]["lora_a"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("for_cpu", [False, True])
def test_decoding_and_reading_prompts_equal_merged(for_cpu: bool) -> None:
    params = random_params(SHAPE)
    adapter = random_adapter(SHAPE, SOME)
    config = SHAPE
    attached = lora.attach_adapter(params, adapter, SOME.scale)
    full = next_tokens.logits(SHAPE, merged_by_hand(params, adapter, SOME.scale), TOKENS)
    if for_cpu:
        config, attached = on_cpus(config, attached)
    lengths = jnp.array([16, 16, 16])
    slots = jnp.arange(3)
    cache = decoding.init_cache(SHAPE, 3, 20, BITS if for_cpu else jnp.float32)
    first, cache = decoding.prefill(config, attached, cache, TOKENS[:, :16], lengths, slots)
    second, _ = decoding.decode(config, attached, cache, TOKENS[:, 16], lengths)
    atol = 0.15 if for_cpu else 2e-5
    np.testing.assert_allclose(first, full[:, 15], atol=atol)
    np.testing.assert_allclose(second, full[:, 16], atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["dots", "full"])
def test_gradients_with_rematerialisation_equal_plain_ones(remat: str) -> None:
    params = random_params(SHAPE)
    adapter = random_adapter(SHAPE, ALL)

    def loss(adapter: decoder.Params, remat: str) -> jax.Array:
        attached = lora.attach_adapter(params, adapter, ALL.scale)
        hidden = decoder.hidden_states(
            SHAPE, attached, TOKENS, execution=decoder.Execution(remat=remat)
        )
        return jnp.sum(jnp.sin(hidden))

    plain, again = (
        jax.jit(jax.grad(loss), static_argnums=1)(adapter, policy) for policy in ("none", remat)
    )
    for x, y in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
        assert jnp.abs(x).max() > 1e-3


def test_what_is_detached_is_the_adapter_with_its_scale_in_it() -> None:
    params = random_params(SHAPE)
    adapter = random_adapter(SHAPE, SOME)
    assert lora.detach_adapter(params) is None
    detached = lora.detach_adapter(lora.attach_adapter(params, adapter, SOME.scale))
    again = lora.attach_adapter(params, detached, 1.0)
    assert lora.adapter_rank(detached) == 2
    assert lora.adapter_targets(detached) == SOME.targets
    np.testing.assert_array_equal(
        again["layers"]["down"]["lora_b"], 4 * adapter["layers"]["down"]["lora_b"]
    )


def test_axes_are_those_of_the_kernels() -> None:
    axes = lora.adapter_axes(SHAPE, ALL)["layers"]
    shapes = lora.abstract_adapter(SHAPE, ALL)["layers"]
    assert axes["key"] == {
        "lora_a": ("layers", "embed", "rank"),
        "lora_b": ("layers", "rank", "kv_heads"),
    }
    assert axes["down"] == {
        "lora_a": ("layers", "mlp", "rank"),
        "lora_b": ("layers", "rank", "embed"),
    }
    assert shapes["key"]["lora_b"].shape == (3, 4, 16)
    # 3 layers x rank 4 x (in + out): q 64, k and v 48, o 64, gate, up and down 72.
    assert lora.adapter_param_count(SHAPE, ALL) == 3 * 4 * (64 + 48 + 48 + 64 + 72 + 72 + 72)
