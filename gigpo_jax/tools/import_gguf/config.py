"""config.json and generation_config.json from the metadata of a GGUF file."""

from dataclasses import asdict
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.rope_scaling import RopeScaling
from gigpo_jax.tools.import_gguf.reader import FIX, GgufFile

# Names of classes in transformers; architectures have the name of their `model_type`.
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ROPE_FACTORS = "rope_freqs.weight"  # one for each frequency, in files of Llama 3.1 and later
# Features that other models of these architectures have, and the values that turn them off.
DISABLED_FEATURES = {
    "expert_count": 0,
    "rope.scale_linear": 1.0,
    "attention.sliding_window": 0,
    "attention.scale": 0.0,
}
# Key of a rope_scaling -> key of the metadata behind rope.scaling, for its kinds.
ROPE_SCALING = {
    "linear": {"factor": "factor"},
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "original_context_length",
        "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow",
    },
}
SAMPLING = {  # key of generation_config.json -> key of the metadata behind general.sampling
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
STOPS = ("eos", "eot", "eom")  # ends of a text, a turn and a message


def make_config(gguf: GgufFile, dtype: str) -> dict[str, Any]:
    """Makes config.json.

    Args:
      gguf: Open file.
      dtype: Name of the dtype in which the weights will be stored.

    Raises:
      InputError: The architecture or its rotary embedding is not supported, or a key is missing.
    """
    name = gguf.architecture
    if name not in CLASSES:
        raise InputError(
            f"the architecture {name} is not supported",
            key="FILE",
            value=gguf.path,
            fix=f"choose a file of {', '.join(CLASSES)}",
        )
    _refuse_features(gguf)
    heads = gguf.get(f"{name}.attention.head_count", int)
    width = gguf.get(f"{name}.embedding_length", int)
    length = f"{name}.attention.key_length"
    head_dim = gguf.get(length, int) if length in gguf.fields else width // max(heads, 1)
    for key in (f"{name}.rope.dimension_count", f"{name}.attention.value_length"):
        if gguf.fields.get(key, head_dim) != head_dim:
            raise InputError(
                f"{key}={gguf.fields[key]} beside heads of {head_dim} is not supported",
                key="FILE",
                value=gguf.path,
                fix="choose a file of another model",
            )
    config = {
        "architectures": [CLASSES[name]],
        "model_type": name,
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": gguf.get(f"{name}.feed_forward_length", int),
        "num_hidden_layers": gguf.get(f"{name}.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.fields.get(f"{name}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": gguf.get(f"{name}.context_length", int),
        "rms_norm_eps": gguf.get(f"{name}.attention.layer_norm_rms_epsilon", float),
        "rope_theta": gguf.fields.get(f"{name}.rope.freq_base", 10_000.0),
        "vocab_size": gguf.shape("token_embd.weight")[0],
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "torch_dtype": dtype,
        "use_cache": True,
    }
    if name == "llama":
        config |= {"attention_bias": False, "mlp_bias": False}
    scaling = _read_rope_scaling(gguf) or _read_rope_factors(gguf, config)
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config | _token_ids(gguf)


def make_generation_config(gguf: GgufFile) -> dict[str, Any]:
    """Makes generation_config.json: ids of special tokens, and settings of sampling."""
    content = _token_ids(gguf)
    for key, name in SAMPLING.items():
        if (value := gguf.fields.get(f"general.sampling.{name}")) is not None:
            content |= {"do_sample": True, key: value}
    return content


def _token_ids(gguf: GgufFile) -> dict[str, Any]:
    """The ids of special tokens; an end of a turn or a message of its own ends a response too."""
    count = gguf.shape("token_embd.weight")[0]
    ids = {}
    for kind in ("bos", "padding", *STOPS):
        number = gguf.fields.get(f"tokenizer.ggml.{kind}_token_id")
        if number is not None and (type(number) is not int or not 0 <= number < count):
            reason = f"tokenizer.ggml.{kind}_token_id={number!r:.60} is none of {count} tokens"
            raise InputError(reason, key="FILE", value=gguf.path, fix=FIX)
        ids[kind] = number
    stops = list(dict.fromkeys(ids[kind] for kind in STOPS if ids[kind] is not None))
    eos = stops if len(stops) > 1 else next(iter(stops), None)
    return {"bos_token_id": ids["bos"], "eos_token_id": eos, "pad_token_id": ids["padding"]}


def _refuse_features(gguf: GgufFile) -> None:
    for name, value in DISABLED_FEATURES.items():
        key = f"{gguf.architecture}.{name}"
        if gguf.fields.get(key, value) != value:
            raise _refuse_field(gguf, key)


def _refuse_field(gguf: GgufFile, key: str) -> InputError:
    return InputError(
        f"{key}={gguf.fields[key]!r:.60} is not supported",
        key="FILE",
        value=gguf.path,
        fix="choose a file of another model",
    )


def _read_rope_scaling(gguf: GgufFile) -> dict[str, Any] | None:
    prefix = f"{gguf.architecture}.rope.scaling."
    names = [key.removeprefix(prefix) for key in gguf.fields if key.startswith(prefix)]
    # llama.cpp takes a factor without a kind for a linear one.
    kind = gguf.fields.get(f"{prefix}type", "linear" if "factor" in names else "none")
    if kind == "none":
        return None
    if kind not in ROPE_SCALING:
        raise _refuse_field(gguf, f"{prefix}type")
    keys = ROPE_SCALING[kind]
    for name in names:
        if name not in (*keys.values(), "type", "finetuned", "original_context_length"):
            raise _refuse_field(gguf, prefix + name)
    values = {key: gguf.fields.get(prefix + name) for key, name in keys.items()}
    given = {key: value for key, value in values.items() if value is not None}
    return {"rope_type": kind, **given}


def _read_rope_factors(gguf: GgufFile, config: dict[str, Any]) -> dict[str, Any] | None:
    if ROPE_FACTORS not in gguf.tensors:
        return None
    # The file has the factors alone. All published models have these bounds.
    factors = gguf.read(ROPE_FACTORS)
    if np.all(factors == 1):
        return None
    scaling = RopeScaling(float(factors.max()), 1.0, 4.0, 8192)
    half = config["head_dim"] // 2
    plain = config["rope_theta"] ** -(np.arange(half, dtype=np.float32) / half)
    if factors.shape != (half,) or not np.allclose(
        plain / factors, scaling.scale_frequencies(plain, config["rope_theta"]), rtol=1e-3
    ):
        raise InputError(
            "its rope factors are not those of Llama 3",
            key="FILE",
            value=gguf.path,
            fix="choose a file of another model",
        )
    return {"rope_type": "llama3", **asdict(scaling)}
