"""Content of config.json for transformers and vLLM."""

from dataclasses import asdict
from typing import Any

from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.families.family import find_family
from gigpo_jax.models.files.hf_config import CRITIC
from gigpo_jax.models.vision.vision_config import vision_json


def config_json(config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """Content of config.json for transformers and vLLM.

    Args:
      config: shape of the model.
      dtype: dtype of the weights, such as "bfloat16".
    """
    eos = config.eos_token_id
    family = find_family(config.model_type)
    kind = family.class_prefix + (CRITIC if config.value_head else "ForCausalLM")
    content = {
        "architectures": [kind],
        "attention_dropout": 0.0,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(eos) if isinstance(eos, tuple) else eos,
        "hidden_act": family.activation,
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "model_type": config.model_type,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": dtype,
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }
    if config.rope_scaling is not None:
        content["rope_scaling"] = _rope_json(config.rope_scaling)
    # Most readers derive it from the width where the key is missing.
    if config.head_dim * config.num_heads != config.hidden_size:
        content["head_dim"] = config.head_dim
    content |= family.write_keys(config)
    if config.vision is not None:
        content = vision_json(config.vision, content)
    if config.value_head:
        content |= {"architectures": [kind], "num_labels": config.value_head}
    return content


def _rope_json(scaling: Any) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(scaling).items() if value is not None}
    return {"rope_type": scaling.kind, **fields}
