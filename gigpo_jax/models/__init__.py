"""Qwen2.5, Qwen3 and Llama 3 in Flax: the model, its weights, its tokenizer. Knows nothing of reinforcement learning.

    from gigpo_jax.models import load_hf, logits, save_hf

    config, params = load_hf("Qwen2.5-0.5B-Instruct", dtype="bfloat16")
    scores = logits(config, params, tokens)  # [B, T] i32 -> [B, T, V] f32
    save_hf("copy", config, params)

The three are imported on first use: the tokenizer and the reader of safetensors files must not bring jax along.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gigpo_jax.models.qwen2 import logits as logits
    from gigpo_jax.models.weights import load_hf as load_hf
    from gigpo_jax.models.weights import save_hf as save_hf

__all__ = ["load_hf", "logits", "save_hf"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(f"{__name__}.{'qwen2' if name == 'logits' else 'weights'}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
