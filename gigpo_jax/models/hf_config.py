"""config.json of a Hugging Face folder <-> `Qwen2Config`; what this project's model does not do is refused."""

import json
import pathlib
from typing import Any

from gigpo_jax.errors import InputError
from gigpo_jax.models.qwen2 import Qwen2Config

_REQUIRED = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
}


def read_config(path: str | pathlib.Path) -> Qwen2Config:
    """Reads config.json of a model folder.

    Args:
      path: the folder.

    Returns:
      The shape of the model.

    Raises:
      InputError: the folder or config.json is missing or broken, or it describes another architecture.
    """
    folder = pathlib.Path(path)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such model folder; give the path of a downloaded Hugging Face model")
    file = folder / "config.json"
    if not file.is_file():
        raise InputError(f"{file}: missing; download the model's complete folder")
    try:
        raw = json.loads(file.read_text())
    except ValueError as err:
        raise InputError(f"{file}: not valid JSON ({err}); download it again") from err
    _refuse_other_models(raw, file)
    values: dict[str, Any] = {ours: _positive_int(raw, theirs, file) for theirs, ours in _REQUIRED.items()}
    values["num_kv_heads"] = values["num_heads"]
    if raw.get("num_key_value_heads") is not None:
        values["num_kv_heads"] = _positive_int(raw, "num_key_value_heads", file)
    values["head_dim"] = values["hidden_size"] // values["num_heads"]
    if raw.get("head_dim") is not None:
        values["head_dim"] = _positive_int(raw, "head_dim", file)
    eos = raw.get("eos_token_id")
    try:
        return Qwen2Config(
            **values,
            rope_theta=float(_rope(raw).get("rope_theta", raw.get("rope_theta", 10_000.0))),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            max_position_embeddings=int(raw.get("max_position_embeddings", 32768)),
            bos_token_id=raw.get("bos_token_id"),
            eos_token_id=tuple(eos) if isinstance(eos, list) else eos,
        )
    except (TypeError, ValueError) as err:
        raise InputError(f"{file}: {err}; download it again") from err


def config_json(config: Qwen2Config, dtype: str) -> dict[str, Any]:
    """Returns the content of config.json for transformers and vLLM.

    Args:
      config: the shape.
      dtype: name of the dtype that the weights are stored in, such as "bfloat16".
    """
    eos = config.eos_token_id
    content = {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(eos) if isinstance(eos, tuple) else eos,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "max_window_layers": config.num_layers,
        "model_type": "qwen2",
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": dtype,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": config.vocab_size,
    }
    if config.head_dim * config.num_heads != config.hidden_size:
        content["head_dim"] = config.head_dim
    return content


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    """Returns what transformers 5 calls rope_parameters and earlier ones rope_scaling; empty if neither is set."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _refuse_other_models(raw: dict[str, Any], file: pathlib.Path) -> None:
    if raw.get("model_type") != "qwen2":
        found = raw.get("model_type", raw.get("architectures"))
        raise InputError(f"{file}: model_type={found!r} is not supported; use a Qwen2.5 model (qwen2)")
    rope = _rope(raw)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise InputError(f"{file}: rotary scaling {kind!r} is not supported; remove rope_scaling")
    sliding = "sliding_attention" in (raw.get("layer_types") or ())
    if raw.get("use_sliding_window") or sliding:
        raise InputError(f"{file}: use_sliding_window is not supported; set it to false to attend to everything")
    if raw.get("hidden_act", "silu") != "silu":
        raise InputError(f"{file}: hidden_act={raw['hidden_act']!r} is not supported; Qwen2.5 has silu")
    if raw.get("quantization_config"):
        raise InputError(f"{file}: quantized weights are not supported; use the model without quantization_config")


def _positive_int(raw: dict[str, Any], key: str, file: pathlib.Path) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or value < 1:
        raise InputError(f"{file}: {key}={value!r} should be a positive whole number; download it again")
    return value
