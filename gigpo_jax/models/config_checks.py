"""Checks of the shapes of decoders with experts, a vision tower or layers of several kinds."""

from typing import Any


def check_special_layers(config: Any) -> None:
    """Raises ValueError if sizes of a `DecoderConfig` do not fit each other."""
    if config.vision is not None:
        _check_tower(config, config.vision)
    if config.layer_types and len(config.layer_types) != config.num_layers:
        raise ValueError(
            f"layer_types of {len(config.layer_types)} layers beside num_hidden_layers="
            f"{config.num_layers}"
        )
    # Positions and caches are of attention.
    if config.delta is not None and "full_attention" not in config.layer_types:
        raise ValueError("layer_types must name a layer of full_attention")
    if (config.experts is not None) != (config.model_type == "qwen3_moe"):
        raise ValueError(f"model_type={config.model_type!r} does not fit experts={config.experts}")
    if config.experts is not None:
        _check_experts(config, config.experts)


def _check_tower(config: Any, vision: Any) -> None:
    if 2 * sum(vision.sections) != config.head_dim:
        raise ValueError(
            f"mrope_section={list(vision.sections)} must sum to {config.head_dim // 2}"
        )
    if vision.feature_parts > config.num_layers:
        raise ValueError(
            f"deepstack_visual_indexes={list(vision.deep_layers)} must be fewer than "
            f"num_hidden_layers={config.num_layers}"
        )


def _check_experts(config: Any, experts: Any) -> None:
    if experts.per_token > experts.count:
        raise ValueError(
            f"num_experts_per_tok={experts.per_token} must be at most num_experts={experts.count}"
        )
    if not config.layer_numbers("layers"):
        raise ValueError(
            f"decoder_sparse_step={experts.sparse_step} and mlp_only_layers="
            f"{list(experts.dense_layers)} leave none of {config.num_layers} layers with experts"
        )
