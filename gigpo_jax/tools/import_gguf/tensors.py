"""Weights of a GGUF file under the names of transformers."""

import math
from dataclasses import dataclass

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.files.weights import stored_shapes
from gigpo_jax.tools.import_gguf.reader import FIX, GgufFile

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
BIASED = ("attn_q", "attn_k", "attn_v")  # of qwen2
NORMED = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}  # of qwen3
UNUSED = ("rope_freqs.weight",)  # a part of config.json


@dataclass(frozen=True)
class Source:
    """A tensor to write.

    Attributes:
      name: Name in transformers.
      stored: Name in the GGUF file.
      shape: [out, in], or [out].
      heads: Number of heads whose rows the file has in another order; 0 if they are in order.
    """

    name: str
    stored: str
    shape: tuple[int, ...]
    heads: int = 0

    @property
    def size(self) -> int:
        """The number of weights."""
        return math.prod(self.shape)


def list_sources(gguf: GgufFile, config: DecoderConfig) -> list[Source]:
    """Lists all tensors of the model.

    Args:
      gguf: Open file.
      config: Shape of the model.

    Raises:
      InputError: The file lacks one, or has others.
    """
    names = {f"{stored}.weight": f"{name}.weight" for stored, name in TOP.items()}
    if not config.tie_word_embeddings:
        names["output.weight"] = "lm_head.weight"
    kind = config.model_type
    layer = LAYER | (NORMED if kind == "qwen3" else {})
    for number in range(config.num_layers):
        for stored, name in layer.items():
            base = f"model.layers.{number}.{name}"
            names[f"blk.{number}.{stored}.weight"] = f"{base}.weight"
            if kind == "qwen2" and stored in BIASED:
                names[f"blk.{number}.{stored}.bias"] = f"{base}.bias"
    if others := sorted(set(gguf.tensors) - set(names) - set(UNUSED)):
        raise InputError(
            f"has tensors that {kind} does not have: {', '.join(others[:3])}",
            key=gguf.path,
            fix="choose a file of another model",
        )
    heads = {
        "attn_q": config.num_heads,
        "attn_k": config.num_kv_heads,
    }
    shapes = stored_shapes(config)
    sources = []
    for stored, name in names.items():
        part = stored.split(".")[-2]
        permuted = heads.get(part, 0) if kind == "llama" else 0
        shape = gguf.shape(stored)
        if shape != shapes[name]:
            reason = f"{stored} has shape {list(shape)}, the metadata ask for {list(shapes[name])}"
            raise InputError(reason, key=gguf.path, fix=FIX)
        sources.append(Source(name, stored, shape, permuted))
    return sources


def read_tensor(gguf: GgufFile, source: Source) -> np.ndarray:
    """Reads a tensor as float32 in the order of transformers."""
    weights = gguf.read(source.stored)
    if not source.heads:
        return weights
    return order_rows(weights, source.heads)


def order_rows(weights: np.ndarray, heads: int) -> np.ndarray:
    """Undoes the order of rows in files of the architecture llama.

    These files rotate neighbouring rows of a head together, transformers row i and row i + K/2.

    Args:
      weights: [heads * K, ...].
      heads: Number of heads.
    """
    half = len(weights) // heads // 2
    pairs = weights.reshape(heads, half, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)
