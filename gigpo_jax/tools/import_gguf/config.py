"""config.json and generation_config.json from the metadata of a GGUF file."""

from dataclasses import asdict
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.rotary import RopeScaling
from gigpo_jax.tools.import_gguf.reader import GgufFile

# Names of classes in transformers; architectures have the name of their `model_type`.
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ROPE_FACTORS = "rope_freqs.weight"  # one for each frequency, in files of Llama 3.1 and later
NUMBER = (int, float)


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
    heads = gguf.get(f"{name}.attention.head_count", int)
    width = gguf.get(f"{name}.embedding_length", int)
    config = {
        "architectures": [CLASSES[name]],
        "model_type": name,
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": gguf.get(f"{name}.feed_forward_length", int),
        "num_hidden_layers": gguf.get(f"{name}.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.fields.get(f"{name}.attention.head_count_kv", heads),
        "head_dim": gguf.fields.get(f"{name}.attention.key_length", width // heads),
        "max_position_embeddings": gguf.get(f"{name}.context_length", int),
        "rms_norm_eps": _shortest(gguf.get(f"{name}.attention.layer_norm_rms_epsilon", NUMBER)),
        "rope_theta": _shortest(gguf.fields.get(f"{name}.rope.freq_base", 10_000.0)),
        "vocab_size": gguf.shape("token_embd.weight")[0],
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "torch_dtype": dtype,
        "use_cache": True,
    }
    if name == "llama":
        config |= {"attention_bias": False, "mlp_bias": False}
    if (scaling := _read_rope_factors(gguf, config)) is not None:
        config["rope_scaling"] = scaling
    bos, eos = (gguf.fields.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos"))
    return config | {"bos_token_id": bos, "eos_token_id": eos}


def make_generation_config(gguf: GgufFile) -> dict[str, Any]:
    """Makes generation_config.json; an end of a turn of its own ends a response too."""
    ids = {
        kind: gguf.fields.get(f"tokenizer.ggml.{kind}_token_id")
        for kind in ("bos", "eos", "eot", "padding")
    }
    stops = list(dict.fromkeys(ids[kind] for kind in ("eos", "eot") if ids[kind] is not None))
    eos = stops[0] if len(stops) == 1 else stops or None
    return {"bos_token_id": ids["bos"], "eos_token_id": eos, "pad_token_id": ids["padding"]}


def _read_rope_factors(gguf: GgufFile, config: dict[str, Any]) -> dict[str, Any] | None:
    kind = gguf.fields.get(f"{gguf.architecture}.rope.scaling.type", "none")
    if kind != "none":
        raise InputError(
            f"rope scaling {kind} is not supported",
            key="FILE",
            value=gguf.path,
            fix="choose a file of another model",
        )
    if ROPE_FACTORS not in gguf.tensors:
        return None
    # The file has the factors alone. All published models have these bounds.
    factors = gguf.read(ROPE_FACTORS)
    scaling = RopeScaling(float(factors.max()), 1.0, 4.0, 8192)
    half = config["head_dim"] // 2
    plain = config["rope_theta"] ** -(np.arange(half, dtype=np.float32) / half)
    if not np.allclose(plain / factors, scaling.scale_frequencies(plain), rtol=1e-3):
        raise InputError(
            "its rope factors are not those of Llama 3",
            key="FILE",
            value=gguf.path,
            fix="choose a file of another model",
        )
    return {"rope_type": "llama3", **asdict(scaling)}


def _shortest(value: float) -> float:
    """Returns the shortest decimal number with this float32 value: 1e-05, not 9.99999974e-06."""
    return float(str(np.float32(value)))
