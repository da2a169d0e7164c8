"""Qwen3-MoE: Qwen3 with experts in place of the SwiGLU block of most layers."""

from typing import Any

from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.expert_config import ExpertConfig
from gigpo_jax.models.families import qwen3
from gigpo_jax.models.families.family import Family
from gigpo_jax.models.files.json_values import JsonValues


def read_fields(values: JsonValues) -> dict[str, Any]:
    experts = ExpertConfig(
        # transformers 5 writes the number under another name.
        count=values.size("num_experts", values.get("num_local_experts")),
        per_token=values.size("num_experts_per_tok"),
        width=values.size("moe_intermediate_size"),
        # False, 1 and no layer are the defaults of transformers.
        normalized=values.flag("norm_topk_prob"),
        sparse_step=values.size("decoder_sparse_step", 1),
        dense_layers=values.integers("mlp_only_layers"),
    )
    return {"experts": experts}


def write_keys(config: DecoderConfig) -> dict[str, Any]:
    experts = config.experts
    assert experts is not None
    return qwen3.write_keys(config) | {
        "decoder_sparse_step": experts.sparse_step,
        "mlp_only_layers": list(experts.dense_layers),
        "moe_intermediate_size": experts.width,
        "norm_topk_prob": experts.normalized,
        "num_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "output_router_logits": False,
    }


FAMILY = Family(
    "Qwen3-MoE", "Qwen3Moe", head_norms=True, read_fields=read_fields, write_keys=write_keys
)
