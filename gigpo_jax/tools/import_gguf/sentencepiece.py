"""tokenizer.json of SentencePiece's byte-pair encoding, as files of Llama 2 and Mistral have it."""

import math
from collections.abc import Mapping
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.tools.import_gguf.reader import FIX, GgufFile

SPACE = "▁"  # in pieces


def make_sentencepiece(gguf: GgufFile, vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """Makes the steps and the model: pieces of a whole text, and bytes of other characters.

    Args:
      gguf: Open file.
      vocabulary: Ids of tokens.

    Raises:
      InputError: The tokenizer is damaged, or lacks tokens of single bytes.
    """
    # Without all bytes, characters that are no pieces would vanish.
    if any(f"<0x{byte:02X}>" not in vocabulary for byte in range(256)):
        raise InputError(
            "a tokenizer llama without all 256 tokens of bytes is not supported",
            key="FILE",
            value=gguf.path,
            fix="choose a file of another model",
        )
    prefix = gguf.fields.get("tokenizer.ggml.add_space_prefix", True)
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": "first" if prefix else "never",
            "split": False,
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": _merge_pieces(gguf, vocabulary),
        },
    }


def _merge_pieces(gguf: GgufFile, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Lists the pairs that make a piece, those of the piece with the highest score first."""
    scores = gguf.get("tokenizer.ggml.scores", list)
    if len(scores) != len(gguf.get("tokenizer.ggml.tokens", list)) or not all(
        isinstance(score, float) and math.isfinite(score) for score in scores
    ):
        raise InputError("its tokenizer is damaged", key="FILE", value=gguf.path, fix=FIX)
    pairs = []
    for piece, number in vocabulary.items():
        for cut in range(1, len(piece)):
            left = piece[:cut]
            right = piece[cut:]
            if left in vocabulary and right in vocabulary:
                pairs.append((left, right, scores[number]))
    # Of equal scores the longer beginning first, as transformers orders them.
    pairs.sort(key=lambda pair: (-pair[2], -len(pair[0]), -len(pair[1])))
    return [(left, right) for left, right, _ in pairs]
