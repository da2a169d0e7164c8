"""tokenizer.json and tokenizer_config.json from the metadata of a GGUF file."""

from collections.abc import Mapping
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.tools.import_gguf.reader import FIX, GgufFile
from gigpo_jax.tools.import_gguf.sentencepiece import make_sentencepiece

# Types of tokens; others have no text of their own.
NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
BYTE = 6
DIGITS = {"type": "Digits", "individual_digits": True}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def _split(pattern: str) -> list[dict[str, Any]]:
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return [split, BYTE_LEVEL | {"use_regex": False}]


_GPT2 = [BYTE_LEVEL | {"use_regex": True}]
_QWEN, _LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    + digits
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in (r"\p{N}", r"\p{N}{1,3}")
)
# What splits a text before byte-pair encoding, by the name in the metadata.
SPLITS: Mapping[str, list[dict[str, Any]]] = {
    **dict.fromkeys(("gpt-2", "phi-2"), _GPT2),
    **{name: [DIGITS, *_GPT2] for name in ("smollm", "starcoder", "refact", "command-r")},
    **{name: _split(_QWEN) for name in ("qwen2", "deepseek-r1-qwen")},
    **{name: _split(_LLAMA) for name in ("llama-bpe", "llama3", "llama-v3")},
}
UNNAMED = "default"  # as in old files, which have no name


def make_tokenizer(gguf: GgufFile) -> dict[str, Any]:
    """Makes tokenizer.json: byte-pair encoding of bytes, or of SentencePiece.

    Raises:
      InputError: The tokenizer is of another kind, or damaged.
    """
    kind = gguf.get("tokenizer.ggml.model", str)
    tokens = gguf.get("tokenizer.ggml.tokens", list)
    types = gguf.get("tokenizer.ggml.token_type", list)
    if len(tokens) != len(types):
        raise InputError("its tokenizer is damaged", key="FILE", value=gguf.path, fix=FIX)
    added = [
        {
            "id": number,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": type_ in (CONTROL, UNKNOWN),
        }
        for number, (text, type_) in enumerate(zip(tokens, types, strict=True))
        if type_ in (CONTROL, UNKNOWN, USER_DEFINED)
    ]
    # Places that fill the matrix up to a round number are no tokens.
    vocabulary = {
        text: number
        for number, (text, type_) in enumerate(zip(tokens, types, strict=True))
        if type_ in (NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE)
    }
    steps = make_sentencepiece if kind == "llama" else _make_byte_level
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": _add_bos(gguf, tokens),
        **steps(gguf, vocabulary),
    }


def _make_byte_level(gguf: GgufFile, vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """Makes the steps and the model of a byte-level tokenizer."""
    split = _split_name(gguf)
    merges = [str(merge).split(" ") for merge in gguf.get("tokenizer.ggml.merges", list)]
    if any(len(merge) != 2 for merge in merges):
        raise InputError("its tokenizer is damaged", key="FILE", value=gguf.path, fix=FIX)
    return {
        "normalizer": {"type": "NFC"} if SPLITS[split] == SPLITS["qwen2"] else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": SPLITS[split]},
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": SPLITS[split] == SPLITS["llama-bpe"],
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def _split_name(gguf: GgufFile) -> str:
    """Returns the name in `SPLITS`; refuses tokenizers of another kind."""
    kind = gguf.get("tokenizer.ggml.model", str)
    split = str(gguf.fields.get("tokenizer.ggml.pre", UNNAMED))
    # All Qwen models have one kind; llama models differ.
    if split == UNNAMED and gguf.architecture != "llama":
        split = "qwen2"
    if kind != "gpt2" or split not in SPLITS:
        raise InputError(
            f"the tokenizer {kind} with the splits {split} is not supported",
            key="FILE",
            value=gguf.path,
            fix=f"choose a file with the tokenizer llama, or gpt2 and one of {', '.join(SPLITS)}",
        )
    return split


def make_tokenizer_config(gguf: GgufFile) -> dict[str, Any]:
    """Makes tokenizer_config.json, with the chat template if the file has one."""
    tokens = gguf.get("tokenizer.ggml.tokens", list)
    content: dict[str, Any] = {
        # The class that takes tokenizer.json as it is.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": gguf.get(f"{gguf.architecture}.context_length", int),
        "clean_up_tokenization_spaces": False,
    }
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    for name, stored in names.items():
        number = gguf.fields.get(f"tokenizer.ggml.{stored}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            content[f"{name}_token"] = tokens[number]
    if (template := gguf.fields.get("tokenizer.chat_template")) is not None:
        content["chat_template"] = template
    return content


def _add_bos(gguf: GgufFile, tokens: list[str]) -> dict[str, Any] | None:
    """The step that writes BOS before a plain text, where the file asks for it."""
    # SentencePiece's files have BOS unless they say otherwise.
    default = (
        gguf.fields["tokenizer.ggml.model"] == "llama"
        and "tokenizer.ggml.bos_token_id" in gguf.fields
    )
    if not gguf.fields.get("tokenizer.ggml.add_bos_token", default):
        return None
    number = gguf.get("tokenizer.ggml.bos_token_id", int)
    if number >= len(tokens):
        raise InputError("its tokenizer is damaged", key="FILE", value=gguf.path, fix=FIX)
    bos = {"SpecialToken": {"id": tokens[number], "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            bos,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {
            tokens[number]: {"id": tokens[number], "ids": [number], "tokens": [tokens[number]]}
        },
    }
