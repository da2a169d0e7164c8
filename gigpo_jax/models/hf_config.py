"""config.json of a Hugging Face folder <-> `Qwen2Config`; unsupported features are refused."""

import pathlib
from dataclasses import asdict
from typing import Any

from gigpo_jax.errors import InputError
from gigpo_jax.files import read_object
from gigpo_jax.models.qwen2_config import MODEL_TYPES, Qwen2Config
from gigpo_jax.models.rotary import RopeScaling
from gigpo_jax.models.tokenizer import token_ids
from gigpo_jax.models.vision_config import VL, decoder_json, read_vision, vision_json

_LARGEST = {  # generous: it stops a broken file before anything of such a size is tried
    "vocab_size": 2**24,
    "hidden_size": 2**16,
    "intermediate_size": 2**18,
    "num_hidden_layers": 2**10,
    "num_attention_heads": 2**10,
    "num_key_value_heads": 2**10,
    "head_dim": 2**12,
    "max_position_embeddings": 2**30,
    "original_max_position_embeddings": 2**30,
}
_CRITIC = "ForTokenClassification"  # with one label: what transformers calls a model with a value head
_FIX = "use the config.json that belongs to the model"


def read_config(path: str | pathlib.Path) -> Qwen2Config:
    """Reads config.json of a model folder; raises InputError if it is missing, broken or of another architecture."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such model folder; give the path of a downloaded Hugging Face model")
    file = folder / "config.json"
    raw = read_object(file)
    vl = raw.get("model_type") == VL
    raw = decoder_json(raw) if vl else raw
    rope = _rope(raw, file)
    _refuse_other_models(raw, rope, file)
    given = {key: value for key, value in (raw | rope).items() if value is not None}
    heads, width = _size(given, "num_attention_heads", file), _size(given, "hidden_size", file)
    eos, bos = token_ids(raw, "eos_token_id", file), token_ids(raw, "bos_token_id", file)
    try:
        return Qwen2Config(
            vocab_size=_size(given, "vocab_size", file),
            hidden_size=width,
            intermediate_size=_size(given, "intermediate_size", file),
            num_layers=_size(given, "num_hidden_layers", file),
            num_heads=heads,
            num_kv_heads=_size(given, "num_key_value_heads", file, heads),
            head_dim=_size(given, "head_dim", file, width // heads),
            rope_theta=_number(given, "rope_theta", file, 10_000.0),
            rms_norm_eps=_number(given, "rms_norm_eps", file, 1e-6),
            tie_word_embeddings=_flag(given, "tie_word_embeddings", file),
            max_position_embeddings=_size(given, "max_position_embeddings", file, 32768),
            bos_token_id=bos[0] if bos else None,
            eos_token_id=eos if isinstance(raw.get("eos_token_id"), list) else eos[0] if eos else None,
            value_head=raw.get("architectures") == [raw["model_type"].capitalize() + _CRITIC],
            model_type=raw["model_type"],
            rope_scaling=_rope_scaling(rope, file),
            vision=read_vision(raw, rope, folder, width) if vl else None,
        )
    except ValueError as err:
        raise InputError(f"{file}: {err}; {_FIX}") from err


def config_json(config: Qwen2Config, dtype: str) -> dict[str, Any]:
    """The content of config.json for transformers and vLLM; `dtype` is that of the weights, such as "bfloat16"."""
    eos, kind = config.eos_token_id, config.model_type.capitalize() + (_CRITIC if config.value_head else "ForCausalLM")
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
        content |= {"max_window_layers": config.num_layers, "sliding_window": None, "use_sliding_window": False}
    if config.rope_scaling is not None:
        content["rope_scaling"] = {"rope_type": "llama3", **asdict(config.rope_scaling)}
    if config.vision is not None:
        content |= vision_json(config.vision, config.hidden_size)
    if config.value_head:
        content |= {"architectures": [kind], "num_labels": 1}
    if config.model_type == "qwen3" or config.head_dim * config.num_heads != config.hidden_size:
        content["head_dim"] = config.head_dim
    return content


def _rope(raw: dict[str, Any], file: pathlib.Path) -> dict[str, Any]:
    """What transformers 5 calls rope_parameters and earlier ones rope_scaling."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise InputError(f"{file}: rope_parameters={rope!r:.80} must be an object; remove it")
    return rope


def _rope_scaling(rope: dict[str, Any], file: pathlib.Path) -> RopeScaling | None:
    if rope.get("rope_type", rope.get("type", "default")) == "default":
        return None
    return RopeScaling(
        factor=_number(rope, "factor", file, 0.0),
        low_freq_factor=_number(rope, "low_freq_factor", file, 0.0),
        high_freq_factor=_number(rope, "high_freq_factor", file, 0.0),
        original_max_position_embeddings=_size(rope, "original_max_position_embeddings", file),
    )


def _refuse_other_models(raw: dict[str, Any], rope: dict[str, Any], file: pathlib.Path) -> None:
    if raw.get("model_type") not in MODEL_TYPES:
        found = raw.get("model_type", raw.get("architectures"))
        fix = "use a Qwen2.5, Qwen2.5-VL, Qwen3 or Llama 3 model (qwen2, qwen2_5_vl, qwen3, llama)"
        raise InputError(f"{file}: model_type={found!r:.80} is not supported; {fix}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in (("default", "llama3") if raw["model_type"] == "llama" else ("default",)):
        raise InputError(f"{file}: rotary scaling {kind!r:.80} is not supported; remove rope_scaling")
    if raw.get("use_sliding_window") or "sliding_attention" in str(raw.get("layer_types")):
        raise InputError(f"{file}: use_sliding_window is not supported; set it to false to attend to everything")
    if raw.get("hidden_act", "silu") != "silu":
        raise InputError(f"{file}: hidden_act={raw['hidden_act']!r:.80} is not supported; these models have silu")
    if raw.get("attention_bias") or raw.get("mlp_bias"):
        raise InputError(f"{file}: attention_bias and mlp_bias are not supported; use a model without them")
    if raw.get("quantization_config"):
        raise InputError(f"{file}: quantized weights are not supported; use the model without quantization_config")


def _size(given: dict[str, Any], key: str, file: pathlib.Path, default: int | None = None) -> int:
    value = given.get(key, default)
    if type(value) is not int or not 1 <= value <= _LARGEST[key]:
        raise InputError(f"{file}: {key}={value!r:.80} must be a whole number from 1 to {_LARGEST[key]}; {_FIX}")
    return value


def _number(given: dict[str, Any], key: str, file: pathlib.Path, default: float) -> float:
    value = given.get(key, default)
    if type(value) not in (int, float) or not 0 < value < 1e12:
        raise InputError(f"{file}: {key}={value!r:.80} must be a finite number above 0; {_FIX}")
    return float(value)


def _flag(given: dict[str, Any], key: str, file: pathlib.Path) -> bool:
    value = given.get(key, False)
    if not isinstance(value, bool):
        raise InputError(f"{file}: {key}={value!r:.80} must be true or false; {_FIX}")
    return value
