"""Small models of every kind, with biases and scales that are not their initial zeros and ones."""

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gigpo_jax.models import decoder
from gigpo_jax.models.decoder import DecoderConfig, Params
from gigpo_jax.models.decoder_config import FULL, LINEAR, SLIDING, STACKS, UNROTATED
from gigpo_jax.models.delta_config import DeltaConfig
from gigpo_jax.models.expert_config import ExpertConfig
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.rope_scaling import LinearScaling, RopeScaling, YarnScaling
from gigpo_jax.models.separate_layers import split_layers
from gigpo_jax.models.vision.vision_config import QWEN3_VL, VisionConfig

# name -> (query heads, key/value heads, tied, theta, more); heads are 8 wide if not said otherwise,
# and D = 8 H.
SMALL: dict[str, DecoderConfig] = {
    name: DecoderConfig(
        61,
        8 * heads,
        40,
        num_heads=heads,
        num_kv_heads=groups,
        **{
            "num_layers": 3,
            "head_dim": 8,
            "rope_theta": theta,
            "tie_word_embeddings": tied,
            **more,
        },
    )
    for name, (heads, groups, tied, theta, more) in {
        "mha_tied": (4, 4, True, 1e6, {}),
        "gqa2_untied": (4, 2, False, 1e4, {"rms_norm_eps": 1e-5}),
        "gqa4_tied": (8, 2, True, 1e4, {"eos_token_id": (3, 5), "bos_token_id": 1}),
        "gqa7_untied": (14, 2, False, 1e6, {"eos_token_id": 3}),
        "mqa_tied": (4, 1, True, 1e6, {}),
        "qwen3_tied": (4, 2, True, 1e6, {"head_dim": 12, "model_type": "qwen3"}),
        "qwen3_untied": (4, 1, False, 1e4, {"model_type": "qwen3"}),
        "moe": (
            4,
            2,
            False,
            1e6,
            {"model_type": "qwen3_moe", "experts": ExpertConfig(6, 2, 24)},
        ),
        # Layer 3 alone has experts: 0, 2 and 4 have none by the step, 1 by its index.
        "moe_mixed": (
            4,
            1,
            True,
            1e4,
            {
                "model_type": "qwen3_moe",
                "num_layers": 5,
                "experts": ExpertConfig(5, 3, 16, False, sparse_step=2, dense_layers=(1,)),
            },
        ),
        "llama": (4, 2, False, 1e4, {"model_type": "llama"}),
        "llama3": (
            4,
            4,
            True,
            5e5,
            {"model_type": "llama", "rope_scaling": RopeScaling(8.0, 1.0, 4.0, 16)},
        ),
        "llama_linear": (
            4,
            2,
            True,
            1e4,
            {"model_type": "llama", "rope_scaling": LinearScaling(4.0)},
        ),
        "mistral_yarn": (
            4,
            2,
            False,
            1e4,
            {"model_type": "mistral", "head_dim": 16, "rope_scaling": YarnScaling(4.0, 16)},
        ),
        "smollm3": (
            4,
            2,
            True,
            1e4,
            {
                "model_type": "smollm3",
                "num_layers": 4,
                "layer_types": (FULL, UNROTATED, FULL, UNROTATED),
            },
        ),
        # Scores have another scale than the width of heads gives.
        "gemma3": (
            4,
            1,
            True,
            1e6,
            {
                "model_type": "gemma3_text",
                "num_layers": 4,
                "head_dim": 16,
                "rope_scaling": LinearScaling(8.0),
                "layer_types": (SLIDING, FULL, SLIDING, SLIDING),
                "sliding_window": 6,
                "sliding_theta": 1e3,
                "query_scalar": 20,
            },
        ),
        # Two value heads share a key head; half of a head is rotated.
        "qwen3_5": (
            4,
            2,
            True,
            1e4,
            {
                "model_type": "qwen3_5_text",
                "num_layers": 4,
                "rotary_dim": 4,
                "layer_types": (LINEAR, LINEAR, FULL, LINEAR),
                "delta": DeltaConfig(2, 4, 16, 8),
            },
        ),
    }.items()
}

# One layer of the tower has windows, one has none: images of more than 8 patches a side have
# several windows.
VISION = VisionConfig(
    depth=2,
    hidden_size=32,
    intermediate_size=40,
    num_heads=2,
    full_layers=(1,),
    sections=(2, 3, 3),
    image_token=55,
    start_token=53,
    end_token=54,
)
VL = DecoderConfig(61, 64, 40, 2, 4, 2, 16, vision=VISION)
# Results of two layers of the tower are added behind layers of the decoder; images of more than 5
# patches a side have several patches in a square of learned positions, smaller ones have none.
VISION3 = dataclasses.replace(
    QWEN3_VL,
    depth=4,
    hidden_size=32,
    intermediate_size=40,
    num_heads=2,
    num_positions=25,
    deep_layers=(0, 2),
    sections=(2, 3, 3),
    image_token=55,
    start_token=53,
    end_token=54,
    min_pixels=3136,
)
VL3 = DecoderConfig(61, 64, 40, 3, 4, 2, 16, model_type="qwen3", vision=VISION3)


def random_params(config: DecoderConfig, seed: int = 0, dtype: jnp.dtype = jnp.float32) -> Params:
    """Draws parameters that leave no term of the model without effect, with numpy: nothing to
    compile.
    """
    rng = np.random.default_rng(seed)

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        mean = float(path[-1].key == "scale")
        return jnp.asarray(rng.normal(mean, 0.2, leaf.shape).astype(np.float32).astype(dtype))

    return jax.tree_util.tree_map_with_path(draw, decoder.abstract_params(config))


def check_gradient(
    gradient: Params, theirs: Any, folder: pathlib.Path, limit: float = 1e-3
) -> DecoderConfig:
    """Compares a gradient with a transformers model's; returns the config of the model's folder."""
    for parameter in theirs.parameters():
        parameter.data = parameter.grad  # written as weights, gradients come back under our names
    theirs.save_pretrained(folder)
    config, their_gradient = load_hf(folder)
    for (path, ours), reference in zip(
        jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(their_gradient), strict=True
    ):
        error = jnp.linalg.norm(ours - reference) / jnp.linalg.norm(reference)
        assert error < limit, f"{jax.tree_util.keystr(path)}: {error}"
    return config


def on_cpus(config: DecoderConfig, params: Params) -> tuple[DecoderConfig, Params]:
    """As an engine in bfloat16 on CPUs has them."""
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    config = dataclasses.replace(config, for_cpu=True)
    return config, layers_apart(config, params)


def layers_apart(config: DecoderConfig, params: Params) -> Params:
    """As an engine has them on GPUs, or for `config.for_cpu`."""
    stacks = {name: params[name] for name in STACKS if name in params}
    return params | {name: split_layers(config, stack) for name, stack in stacks.items()}
