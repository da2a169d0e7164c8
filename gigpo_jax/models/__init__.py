"""Qwen, Llama, Gemma and others in Flax: models, weights and tokenizers, without any RL.

from gigpo_jax.models import load_hf, logits, save_hf

config, params = load_hf("Qwen2.5-0.5B-Instruct", dtype="bfloat16")
scores = logits(config, params, tokens)  # [B, T] i32 -> [B, T, V] f32
save_hf("copy", config, params)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gigpo_jax.models.files.save_weights import save_hf as save_hf
    from gigpo_jax.models.files.weights import load_hf as load_hf
    from gigpo_jax.models.next_tokens import logits as logits

_MODULES = {"load_hf": "files.weights", "logits": "next_tokens", "save_hf": "files.save_weights"}

__all__ = ["load_hf", "logits", "save_hf"]


# Imported on first use: importing the tokenizer or the safetensors reader must not import jax.
def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    return getattr(module, name)
