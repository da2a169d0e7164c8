"""Qwen3.5, its text models: three gated delta-net layers to one of attention.

Norms multiply by 1 + scale. In attention, queries and keys are normed, a quarter of a head is
rotated, and the result is multiplied by a gate. Published folders have a vision tower and a layer
for further tokens (mtp), which are left out.
"""

from typing import Any

from gigpo_jax.models.decoder_config import FULL, LINEAR, DecoderConfig
from gigpo_jax.models.delta_config import DeltaConfig
from gigpo_jax.models.families.family import Family
from gigpo_jax.models.files.json_values import JsonValues


def read_fields(values: JsonValues) -> dict[str, Any]:
    layers = values.size("num_hidden_layers")
    step = values.size("full_attention_interval", 4)
    kinds = values.get("layer_types")
    if kinds is None:
        kinds = [LINEAR if (layer + 1) % step else FULL for layer in range(layers)]
    if not isinstance(kinds, list) or any(kind not in (FULL, LINEAR) for kind in kinds):
        raise values.error(f"layer_types={kinds!r:.80} must be a list of {FULL} and {LINEAR}")
    if not values.flag("attn_output_gate", True):
        raise values.error("attn_output_gate must be true")
    head_dim = values.size("head_dim")
    rotated = values.number("partial_rotary_factor", 0.25)
    return {
        "layer_types": tuple(kinds),
        "rotary_dim": int(head_dim * rotated),
        "delta": DeltaConfig(
            key_heads=values.size("linear_num_key_heads", 16),
            value_heads=values.size("linear_num_value_heads", 32),
            key_dim=values.size("linear_key_head_dim", 128),
            value_dim=values.size("linear_value_head_dim", 128),
            taps=values.size("linear_conv_kernel_dim", 4),
        ),
    }


def write_keys(config: DecoderConfig) -> dict[str, Any]:
    delta = config.delta
    assert delta is not None
    return {
        "attention_bias": False,
        "attn_output_gate": True,
        "head_dim": config.head_dim,
        "layer_types": list(config.layer_types),
        "linear_conv_kernel_dim": delta.taps,
        "linear_key_head_dim": delta.key_dim,
        "linear_num_key_heads": delta.key_heads,
        "linear_num_value_heads": delta.value_heads,
        "linear_value_head_dim": delta.value_dim,
        "partial_rotary_factor": (config.rotary_dim or config.head_dim) / config.head_dim,
    }


FAMILY = Family(
    "Qwen3.5 (text)",
    "Qwen3_5",
    head_norms=True,
    norm_offset=1.0,
    gated_attention=True,
    modules={
        "delta_inputs": "linear_attn.in_proj_qkv",
        "delta_gate": "linear_attn.in_proj_z",
        "delta_rate": "linear_attn.in_proj_b",
        "delta_decay": "linear_attn.in_proj_a",
        "delta_taps": "linear_attn.conv1d",
        "delta_log_decay": "linear_attn.A_log",
        "delta_decay_bias": "linear_attn.dt_bias",
        "delta_norm": "linear_attn.norm",
        "delta_out": "linear_attn.out_proj",
    },
    defaults={"head_dim": 256},
    read_fields=read_fields,
    write_keys=write_keys,
    ignored_tensors=("visual.", "mtp."),
)
