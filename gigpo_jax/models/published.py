"""The shapes of published models, for memory estimates, benchmarks and tests."""

from dataclasses import replace

from gigpo_jax.models.decoder_config import FULL, LINEAR, SLIDING, UNROTATED, DecoderConfig
from gigpo_jax.models.delta_config import DeltaConfig
from gigpo_jax.models.expert_config import ExpertConfig
from gigpo_jax.models.rope_scaling import RopeScaling
from gigpo_jax.models.vision.vision_config import QWEN3_VL, VisionConfig


def _qwen2_5(
    hidden: int,
    inner: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int = 151936,
) -> DecoderConfig:
    return DecoderConfig(
        vocab,
        hidden,
        inner,
        layers,
        heads,
        kv_heads,
        head_dim,
        # The published models below 7B have one matrix for input and output.
        tie_word_embeddings=hidden < 3584,
        bos_token_id=151643,
        eos_token_id=151645,
    )


def _qwen3(hidden: int, inner: int, layers: int, heads: int) -> DecoderConfig:
    return DecoderConfig(
        151936,
        hidden,
        inner,
        layers,
        heads,
        num_kv_heads=8,
        head_dim=128,
        # The published models below 8B have one matrix for input and output.
        tie_word_embeddings=hidden < 4096,
        max_position_embeddings=40960,
        bos_token_id=151643,
        eos_token_id=151645,
        model_type="qwen3",
    )


# https://huggingface.co/Qwen/Qwen3-30B-A3B, config.json
_QWEN3_30B_A3B = DecoderConfig(
    151936,
    2048,
    6144,
    num_layers=48,
    num_heads=32,
    num_kv_heads=4,
    head_dim=128,
    tie_word_embeddings=False,
    max_position_embeddings=40960,
    bos_token_id=151643,
    eos_token_id=151645,
    model_type="qwen3_moe",
    experts=ExpertConfig(count=128, per_token=8, width=768),
)

# https://huggingface.co/Qwen (Qwen2.5-*-Instruct and Qwen3-*, config.json)
PUBLISHED: dict[str, DecoderConfig] = {
    "0.5b": _qwen2_5(896, 4864, 24, 14, 2, 64),
    "1.5b": _qwen2_5(1536, 8960, 28, 12, 2, 128),
    "3b": _qwen2_5(2048, 11008, 36, 16, 2, 128),
    "7b": _qwen2_5(3584, 18944, 28, 28, 4, 128, vocab=152064),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32),
    "qwen3-30b-a3b": _QWEN3_30B_A3B,
}


def _gemma3(hidden: int, inner: int, layers: int) -> DecoderConfig:
    return DecoderConfig(
        262144,
        hidden,
        inner,
        layers,
        num_heads=4,
        num_kv_heads=1,
        head_dim=256,
        bos_token_id=2,
        eos_token_id=1,
        model_type="gemma3_text",
        layer_types=tuple(FULL if (layer + 1) % 6 == 0 else SLIDING for layer in range(layers)),
        sliding_window=512,
        query_scalar=256,
    )


def _qwen3_5(
    hidden: int, inner: int, layers: int, heads: int, kv_heads: int, value_heads: int
) -> DecoderConfig:
    return DecoderConfig(
        248320,
        hidden,
        inner,
        layers,
        heads,
        kv_heads,
        head_dim=256,
        rope_theta=10_000_000.0,
        tie_word_embeddings=hidden < 4096,
        max_position_embeddings=262144,
        eos_token_id=248044,
        model_type="qwen3_5_text",
        layer_types=(LINEAR, LINEAR, LINEAR, FULL) * (layers // 4),
        rotary_dim=64,
        delta=DeltaConfig(16, value_heads, 128, 128),
    )


def _llama(
    vocab: int,
    hidden: int,
    inner: int,
    layers: int,
    heads: int,
    kv_heads: int,
    *,
    head_dim: int = 64,
    theta: float = 100_000.0,
) -> DecoderConfig:
    return DecoderConfig(
        vocab,
        hidden,
        inner,
        layers,
        heads,
        kv_heads,
        head_dim,
        rope_theta=theta,
        rms_norm_eps=1e-5,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=2,
        model_type="llama",
    )


def _llama3_2(hidden: int, layers: int, heads: int, head_dim: int) -> DecoderConfig:
    return replace(
        _llama(128256, hidden, 8192, layers, heads, 8, head_dim=head_dim, theta=500_000.0),
        max_position_embeddings=131072,
        bos_token_id=128000,
        eos_token_id=(128001, 128008, 128009),
        rope_scaling=RopeScaling(32.0, 1.0, 4.0, 8192),
    )


# Other text models by their published names: https://huggingface.co/google, HuggingFaceTB,
# meta-llama, mistralai and Qwen.
PUBLISHED_TEXT: dict[str, DecoderConfig] = {
    "SmolLM2-135M-Instruct": _llama(49152, 576, 1536, 30, 9, 3),
    "SmolLM2-360M-Instruct": _llama(49152, 960, 2560, 32, 15, 5),
    "SmolLM2-1.7B-Instruct": _llama(49152, 2048, 8192, 24, 32, 32, theta=130_000.0),
    "Llama-3.2-1B-Instruct": _llama3_2(2048, 16, 32, head_dim=64),
    "Llama-3.2-3B-Instruct": _llama3_2(3072, 28, 24, head_dim=128),
    "Mistral-7B-Instruct-v0.3": replace(
        _llama(32768, 4096, 14336, 32, 32, 8, head_dim=128, theta=1_000_000.0),
        tie_word_embeddings=False,
        max_position_embeddings=32768,
        model_type="mistral",
    ),
    "Qwen3.5-0.8B": _qwen3_5(1024, 3584, 24, heads=8, kv_heads=2, value_heads=16),
    "Qwen3.5-9B": _qwen3_5(4096, 12288, 32, heads=16, kv_heads=4, value_heads=32),
    "gemma-3-270m-it": _gemma3(640, 2048, 18),
    "gemma-3-1b-it": _gemma3(1152, 6912, 26),
    "SmolLM3-3B": DecoderConfig(
        128256,
        2048,
        11008,
        num_layers=36,
        num_heads=16,
        num_kv_heads=4,
        head_dim=128,
        rope_theta=5_000_000.0,
        max_position_embeddings=65536,
        bos_token_id=128000,
        eos_token_id=128012,
        model_type="smollm3",
        layer_types=(FULL, FULL, FULL, UNROTATED) * 9,
    ),
}


def _qwen3_vl(decoder: str, vision: VisionConfig) -> DecoderConfig:
    return replace(
        PUBLISHED[decoder], rope_theta=5_000_000.0, max_position_embeddings=262144, vision=vision
    )


# Models with a vision tower by their published names.
PUBLISHED_VISION: dict[str, DecoderConfig] = {
    "Qwen2.5-VL-3B-Instruct": replace(PUBLISHED["3b"], vision=VisionConfig()),
    "Qwen2.5-VL-7B-Instruct": replace(PUBLISHED["7b"], vision=VisionConfig()),
    "Qwen3-VL-4B-Instruct": _qwen3_vl(
        "qwen3-4b",
        replace(
            QWEN3_VL,
            depth=24,
            hidden_size=1024,
            intermediate_size=4096,
            deep_layers=(5, 11, 17),
        ),
    ),
    "Qwen3-VL-8B-Instruct": _qwen3_vl("qwen3-8b", QWEN3_VL),
}
