"""Small GGUF files with random weights and a byte-level tokenizer, as the package gguf writes them."""

import itertools
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS = 256, 512, 2, 8, 4
# 128 is what transformers takes for every file of qwen3.
HEAD_DIMS = {"llama": 32, "qwen2": 32, "qwen3": 128, "gemma": 32}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "12 3")
# Bytes of a block that hold its float16 scales; any other bytes are weights.
K_SCALES = {"Q4_K": (0, 4), "Q5_K": (0, 4), "Q6_K": (208, 210)}

ADD = {
    bool: gguf.GGUFWriter.add_bool,
    int: gguf.GGUFWriter.add_uint32,
    float: gguf.GGUFWriter.add_float32,
    str: gguf.GGUFWriter.add_string,
    list: gguf.GGUFWriter.add_array,
}


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    weights: str = "F32",
    split: str = "smollm",
    tied: bool = True,
    bos: bool = False,
    changes: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
) -> Path:
    """Writes a file whose matrices have a type and whose other tensors are F32.

    `weights` of several types, with "+" between them, are taken in turn. `changes` are other values
    of the metadata and `tensors` other tensors; None leaves one out.
    """
    writer = gguf.GGUFWriter(path, architecture)
    add_shape(writer, HEAD_DIMS[architecture])
    vocabulary = add_tokenizer(writer, split, bos=bos)
    for key, value in (changes or {}).items():
        writer.kv_data[0].pop(key, None)
        if value is not None:
            ADD[type(value)](writer, key, value)
    others = tensors or {}
    for name, array in others.items():
        if array is not None:
            writer.add_tensor(name, array)
    shapes = list_shapes(architecture, vocabulary, tied=tied)
    add_tensors(writer, {name: shapes[name] for name in shapes if name not in others}, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_shape(writer: gguf.GGUFWriter, head_dim: int) -> None:
    """Adds the settings of the model."""
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(head_dim)


def add_tokenizer(writer: gguf.GGUFWriter, split: str, *, bos: bool) -> int:
    """Adds a byte-level tokenizer; returns the size of its vocabulary."""
    letters = sorted(ByteLevel.alphabet())
    tokens = [*SPECIAL, *letters, *(merge.replace(" ", "") for merge in MERGES)]
    tokens += [f"[PAD{number}]" for number in range(len(tokens), 288)]
    types = [3] * len(SPECIAL) + [1] * (len(letters) + len(MERGES))
    types += [5] * (len(tokens) - len(types))
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(bos)
    writer.add_chat_template(TEMPLATE)
    return len(tokens)


def add_tensors(writer: gguf.GGUFWriter, shapes: dict[str, tuple[int, ...]], weights: str) -> None:
    """Adds random tensors: matrices of the types in turn, vectors in F32."""
    rng = np.random.default_rng(0)
    kinds = itertools.cycle(weights.split("+"))
    for name, shape in shapes.items():
        if len(shape) == 1:
            offset = 1.0 if "norm" in name else 0.0
            writer.add_tensor(name, (offset + 0.1 * rng.standard_normal(shape)).astype("f4"))
        else:
            add_matrix(writer, name, rng, shape, next(kinds))


def list_shapes(architecture: str, vocabulary: int, *, tied: bool) -> dict[str, tuple[int, ...]]:
    """The tensors of an architecture."""
    head_dim = HEAD_DIMS[architecture]
    queries, keys = HEADS * head_dim, KV_HEADS * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary, WIDTH),
        "output_norm.weight": (WIDTH,),
    }
    if not tied:
        shapes["output.weight"] = (vocabulary, WIDTH)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (WIDTH,),
        "attn_q.weight": (queries, WIDTH),
        "attn_k.weight": (keys, WIDTH),
        "attn_v.weight": (keys, WIDTH),
        "attn_output.weight": (WIDTH, queries),
        "ffn_norm.weight": (WIDTH,),
        "ffn_gate.weight": (HIDDEN, WIDTH),
        "ffn_up.weight": (HIDDEN, WIDTH),
        "ffn_down.weight": (WIDTH, HIDDEN),
    }
    if architecture == "qwen2":
        layer |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if architecture == "qwen3":
        layer |= {"attn_q_norm.weight": (head_dim,), "attn_k_norm.weight": (head_dim,)}
    for number in range(LAYERS):
        shapes |= {f"blk.{number}.{name}": shape for name, shape in layer.items()}
    return shapes


def add_matrix(
    writer: gguf.GGUFWriter,
    name: str,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    weights: str,
) -> None:
    """Adds a random matrix of a type."""
    kind = gguf.GGMLQuantizationType[weights]
    if weights in K_SCALES:  # the package cannot write these; random blocks with small scales
        block, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (shape[0] * shape[1] // block, size), np.uint8)
        start, end = K_SCALES[weights]
        scales = rng.uniform(1e-4, 3e-4, (len(blocks), (end - start) // 2)).astype(np.float16)
        blocks[:, start:end] = scales.view(np.uint8)
        data = blocks.reshape(shape[0], -1)
    else:
        data = gguf.quantize((0.05 * rng.standard_normal(shape)).astype(np.float32), kind)
    writer.add_tensor(name, data, raw_dtype=kind)
