"""Gemma 3, its text models: norms before and after each part, and layers with sliding windows.

Norms multiply by 1 + scale, the gate of the MLP is GELU (tanh), and embeddings are multiplied by
the root of their width. Of six layers five see a window of tokens, with a rotary base of their own.
"""

from typing import Any

from gigpo_jax.models.decoder_config import FULL, SLIDING, DecoderConfig
from gigpo_jax.models.families.family import Family
from gigpo_jax.models.files.json_values import JsonValues


def read_fields(values: JsonValues) -> dict[str, Any]:
    layers = values.size("num_hidden_layers")
    # Two names of one setting, in older folders.
    step = values.size("sliding_window_pattern", values.get("_sliding_window_pattern", 6))
    kinds = values.get("layer_types")
    if kinds is None:
        kinds = [SLIDING if (layer + 1) % step else FULL for layer in range(layers)]
    if not isinstance(kinds, list) or any(kind not in (FULL, SLIDING) for kind in kinds):
        raise values.error(f"layer_types={kinds!r:.80} must be a list of {FULL} and {SLIDING}")
    # transformers 5 has the settings of the rotary embedding by kind of attention.
    sliding_rope = (values.get("rope_parameters") or {}).get(SLIDING) or {}
    if sliding_rope.get("rope_type", "default") != "default":
        raise values.error(f"rope_parameters of {SLIDING} must have no scaling")
    theta = sliding_rope.get("rope_theta", values.get("rope_local_base_freq"))
    sliding = JsonValues({"rope_local_base_freq": theta}, values.file)
    return {
        "layer_types": tuple(kinds),
        "sliding_window": values.size("sliding_window", 4096),
        "sliding_theta": sliding.number("rope_local_base_freq", 10_000.0),
        "query_scalar": values.size("query_pre_attn_scalar", 256),
    }


def write_keys(config: DecoderConfig) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "head_dim": config.head_dim,
        "hidden_activation": FAMILY.activation,
        "layer_types": list(config.layer_types) or [FULL] * config.num_layers,
        # Without a row that gets no gradient, as the row of the default has.
        "pad_token_id": None,
        "query_pre_attn_scalar": config.query_scalar or config.head_dim,
        "rope_local_base_freq": config.sliding_theta,
        "sliding_window": config.sliding_window or 4096,
        "use_bidirectional_attention": False,
    }


FAMILY = Family(
    "Gemma 3 (text)",
    "Gemma3",
    head_norms=True,
    result_norms=True,
    norm_offset=1.0,
    activation="gelu_pytorch_tanh",
    scales_embeddings=True,
    modules={
        "attention_result_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_result_norm": "post_feedforward_layernorm",
    },
    defaults={"head_dim": 256, "rope_theta": 1_000_000.0, "tie_word_embeddings": True},
    read_fields=read_fields,
    write_keys=write_keys,
    window_key="",
    unsupported=(
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "use_bidirectional_attention",
    ),
)
