"""Reads and writes config.json of a Hugging Face folder; refuses unsupported features."""

import pathlib
from dataclasses import asdict
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import read_object
from gigpo_jax.models.decoder_config import MODEL_TYPES, DecoderConfig, ExpertConfig
from gigpo_jax.models.linears import DECODERS
from gigpo_jax.models.text.tokenizer import read_token_ids

_LARGEST = {  # generous: stops a broken file before arrays of such a size are tried
    "vocab_size": 2**24,
    "hidden_size": 2**16,
    "intermediate_size": 2**18,
    "num_hidden_layers": 2**10,
    "num_attention_heads": 2**10,
    "num_key_value_heads": 2**10,
    "head_dim": 2**12,
    "max_position_embeddings": 2**30,
    "original_max_position_embeddings": 2**30,
    "num_experts": 2**14,
    "num_experts_per_tok": 2**10,
    "moe_intermediate_size": 2**16,
    "decoder_sparse_step": 2**10,
}
# A model with a value head in transformers: one label a token.
_CRITIC = "ForTokenClassification"
ROPE_KINDS = ("default", "linear", "yarn", "llama3")
_FIX = "use the config.json that belongs to the model"


def read_config(path: str | pathlib.Path) -> DecoderConfig:
    """Reads config.json of a model folder.

    Raises:
      InputError: the file is missing, broken or of another architecture.
    """
    folder = pathlib.Path(path)
    if not folder.is_dir():
        raise InputError(
            "no such model folder",
            key=folder,
            fix="give the path of a downloaded Hugging Face model",
        )
    file = folder / "config.json"
    raw = read_object(file)
    stored_type = str(raw.get("model_type"))
    has_vision = stored_type in DECODERS
    if has_vision:
        from gigpo_jax.models.vision.vision_config import decoder_json, read_vision

        raw = decoder_json(raw)
    rope = _rope_settings(raw, file)
    _refuse_other_models(raw, rope, file)
    # transformers 5 has rope_theta among the settings of the rotary embedding. null is the default,
    # as a missing key is.
    values = {key: value for key, value in (raw | rope).items() if value is not None}
    heads = _read_size(values, "num_attention_heads", file)
    width = _read_size(values, "hidden_size", file)
    bos = read_token_ids(raw, "bos_token_id", file)
    eos_ids = read_token_ids(raw, "eos_token_id", file)
    # A list stays one, so that the file can be written again as it was.
    eos: int | tuple[int, ...] | None = eos_ids
    if not isinstance(raw.get("eos_token_id"), list):
        eos = eos_ids[0] if eos_ids else None
    try:
        return DecoderConfig(
            vocab_size=_read_size(values, "vocab_size", file),
            hidden_size=width,
            intermediate_size=_read_size(values, "intermediate_size", file),
            num_layers=_read_size(values, "num_hidden_layers", file),
            num_heads=heads,
            num_kv_heads=_read_size(values, "num_key_value_heads", file, heads),
            head_dim=_read_size(values, "head_dim", file, width // heads),
            # 10,000 and 1e-6 are the defaults of transformers for these types.
            rope_theta=_read_number(values, "rope_theta", file, 10_000.0),
            rms_norm_eps=_read_number(values, "rms_norm_eps", file, 1e-6),
            tie_word_embeddings=_read_flag(values, "tie_word_embeddings", file),
            max_position_embeddings=_read_size(values, "max_position_embeddings", file, 32768),
            bos_token_id=bos[0] if bos else None,
            eos_token_id=eos,
            value_head=_count_values(raw),
            model_type=raw["model_type"],
            rope_scaling=_rope_scaling(rope, values, file),
            vision=read_vision(stored_type, raw, rope, folder, width) if has_vision else None,
            experts=_read_experts(values, file) if raw["model_type"] == "qwen3_moe" else None,
        )
    except ValueError as err:
        raise InputError(str(err), key=file, fix=_FIX) from err


def config_json(config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """Content of config.json for transformers and vLLM.

    Args:
      config: shape of the model.
      dtype: dtype of the weights, such as "bfloat16".
    """
    eos = config.eos_token_id
    kind = _class_prefix(config.model_type) + (_CRITIC if config.value_head else "ForCausalLM")
    content = {
        "architectures": [kind],
        "attention_dropout": 0.0,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(eos) if isinstance(eos, tuple) else eos,
        "hidden_act": "silu",
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
    if config.model_type == "llama":
        content |= {"attention_bias": False, "mlp_bias": False}
    else:
        content |= {
            "max_window_layers": config.num_layers,
            "sliding_window": None,
            "use_sliding_window": False,
        }
    if config.experts is not None:
        content |= {
            "decoder_sparse_step": config.experts.sparse_step,
            "mlp_only_layers": list(config.experts.dense_layers),
            "moe_intermediate_size": config.experts.width,
            "norm_topk_prob": config.experts.normalized,
            "num_experts": config.experts.count,
            "num_experts_per_tok": config.experts.per_token,
            "output_router_logits": False,
        }
    if config.rope_scaling is not None:
        content["rope_scaling"] = _rope_json(config.rope_scaling)
    # Readers derive it from the width where the key is missing, except for Qwen3.
    if "qwen3" in config.model_type or config.head_dim * config.num_heads != config.hidden_size:
        content["head_dim"] = config.head_dim
    if config.vision is not None:
        from gigpo_jax.models.vision.vision_config import vision_json

        content = vision_json(config.vision, content)
    if config.value_head:
        content |= {"architectures": [kind], "num_labels": config.value_head}
    return content


def _count_values(raw: dict[str, Any]) -> int:
    """Number of a critic's values a token.

    It is 0 for a language model.
    """
    if raw.get("architectures") != [_class_prefix(raw["model_type"]) + _CRITIC]:
        return 0
    # transformers writes names of labels in place of their number.
    count = raw.get("num_labels", len(raw.get("id2label", "1")))
    return count if type(count) is int and count > 0 else 1


def _class_prefix(model_type: str) -> str:
    """Name of a type in classes of transformers: Qwen3Moe."""
    return "".join(word.capitalize() for word in model_type.split("_"))


def _read_experts(values: dict[str, Any], file: pathlib.Path) -> ExpertConfig:
    # transformers 5 writes the number under another name.
    count = values.get("num_local_experts")
    dense_layers = values.get("mlp_only_layers", [])
    if not isinstance(dense_layers, list) or not all(type(n) is int for n in dense_layers):
        raise InputError(
            f"mlp_only_layers={dense_layers!r:.80} must be a list of indices", key=file, fix=_FIX
        )
    return ExpertConfig(
        count=_read_size(values, "num_experts", file, count),
        per_token=_read_size(values, "num_experts_per_tok", file),
        width=_read_size(values, "moe_intermediate_size", file),
        # False, 1 and no layer are the defaults of transformers.
        normalized=_read_flag(values, "norm_topk_prob", file),
        sparse_step=_read_size(values, "decoder_sparse_step", file, 1),
        dense_layers=tuple(dense_layers),
    )


def _rope_settings(raw: dict[str, Any], file: pathlib.Path) -> dict[str, Any]:
    """Settings of the rotary embedding: rope_parameters, before transformers 5 rope_scaling."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise InputError(
            f"rope_parameters={rope!r:.80} must be an object", key=file, fix="remove it"
        )
    return rope


def _rope_kind(rope: dict[str, Any]) -> str:
    return str(rope.get("rope_type", rope.get("type", "default")))


def _rope_scaling(rope: dict[str, Any], values: dict[str, Any], file: pathlib.Path) -> Any:
    kind = _rope_kind(rope)
    if kind == "default":
        return None
    # Here: few models have one.
    from gigpo_jax.models.rope_scaling import LinearScaling, RopeScaling, YarnScaling

    factor = _read_number(rope, "factor", file, 0.0)
    if kind == LinearScaling.kind:
        return LinearScaling(factor)
    if kind == YarnScaling.kind:
        context = _read_size(values, "max_position_embeddings", file, 32768)
        given = rope.get("attention_factor") is not None
        return YarnScaling(
            factor,
            _read_size(rope, "original_max_position_embeddings", file, context),
            _read_number(rope, "beta_fast", file, 32.0),
            _read_number(rope, "beta_slow", file, 1.0),
            _read_number(rope, "attention_factor", file, 0.0) if given else None,
        )
    return RopeScaling(
        factor=factor,
        low_freq_factor=_read_number(rope, "low_freq_factor", file, 0.0),
        high_freq_factor=_read_number(rope, "high_freq_factor", file, 0.0),
        original_max_position_embeddings=_read_size(rope, "original_max_position_embeddings", file),
    )


def _rope_json(scaling: Any) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(scaling).items() if value is not None}
    return {"rope_type": scaling.kind, **fields}


def _refuse_other_models(raw: dict[str, Any], rope: dict[str, Any], file: pathlib.Path) -> None:
    if raw.get("model_type") not in MODEL_TYPES:
        model_type = raw.get("model_type", raw.get("architectures"))
        kinds = ", ".join((*MODEL_TYPES, *DECODERS))
        names = "Qwen2.5, Qwen3, Qwen3-MoE, Llama 3, Mistral, Qwen2.5-VL or Qwen3-VL"
        fix = f"use a {names} model ({kinds})"
        raise InputError(f"model_type={model_type!r:.80} is not supported", key=file, fix=fix)
    kind = _rope_kind(rope)
    # Of DeepSeek's models; other factors of cosines and sines.
    others = {"mscale", "mscale_all_dim", "truncate"} & set(rope)
    if kind not in ROPE_KINDS or (kind == "yarn" and others):
        # Not "remove rope_scaling": the model was trained with it.
        raise InputError(
            f"rotary scaling {kind!r:.80} with {sorted(rope)!r:.80} is not supported",
            key=file,
            fix=f"use a model with one of {', '.join(ROPE_KINDS)}",
        )
    # A feature that this code ignored would change the numbers without an error. Mistral's has
    # another name, and 4096 is its default.
    window = raw["model_type"] == "mistral" and raw.get("sliding_window", 4096)
    if (
        window
        or raw.get("use_sliding_window")
        or "sliding_attention" in str(raw.get("layer_types"))
    ):
        raise InputError(
            f"sliding windows are not supported (sliding_window={raw.get('sliding_window')!r:.20})",
            key=file,
            fix="use a model without them: use_sliding_window=false, or sliding_window=null",
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise InputError(
            f"hidden_act={raw['hidden_act']!r:.80} is not supported",
            key=file,
            fix="these models have silu",
        )
    if raw.get("attention_bias") or raw.get("mlp_bias"):
        raise InputError(
            "attention_bias and mlp_bias are not supported",
            key=file,
            fix="use a model without them",
        )
    if raw.get("quantization_config"):
        raise InputError(
            "quantized weights are not supported",
            key=file,
            fix="use the model without quantization_config",
        )


def _read_size(
    values: dict[str, Any], key: str, file: pathlib.Path, default: int | None = None
) -> int:
    value = values.get(key, default)
    # Not `isinstance`, for which `true` is an int.
    if type(value) is not int or not 1 <= value <= _LARGEST[key]:
        raise InputError(
            f"{key}={value!r:.80} must be a whole number from 1 to {_LARGEST[key]}",
            key=file,
            fix=_FIX,
        )
    return value


def _read_number(values: dict[str, Any], key: str, file: pathlib.Path, default: float) -> float:
    value = values.get(key, default)
    if type(value) not in (int, float) or not 0 < value < 1e12:
        raise InputError(f"{key}={value!r:.80} must be a finite number above 0", key=file, fix=_FIX)
    return float(value)


def _read_flag(values: dict[str, Any], key: str, file: pathlib.Path) -> bool:
    value = values.get(key, False)
    if not isinstance(value, bool):
        raise InputError(f"{key}={value!r:.80} must be true or false", key=file, fix=_FIX)
    return value
