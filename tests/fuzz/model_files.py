"""Files of models: weights, tokenizers, settings and GGUF."""

import io
import json
import os
import re
import struct
import tempfile
from pathlib import Path
from typing import Any

import tokenizers

from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.files.hf_config import read_config
from gigpo_jax.models.files.safetensors_file import parse_header
from gigpo_jax.models.files.write_config import config_json
from gigpo_jax.models.text.continuation import encode_continuation
from gigpo_jax.models.text.token_bytes import TokenBytes
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.tools.import_gguf.command import _write_contents
from gigpo_jax.tools.import_gguf.config import make_config, make_generation_config
from gigpo_jax.tools.import_gguf.reader import GgufFile, Tensor, open_gguf
from gigpo_jax.tools.import_gguf.tensors import list_sources
from gigpo_jax.tools.import_gguf.tokenizer import make_tokenizer, make_tokenizer_config
from tests.fuzz.inputs import dump, parse_object, write_files
from tests.models.shapes import SMALL, VL, VL3
from tests.tools.import_gguf.files import SPECIAL, TEMPLATE, write_gguf


def read_safetensors(data: bytes) -> None:
    parse_header(io.BytesIO(data), "file")


def seed_safetensors() -> list[bytes]:
    entries = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [0], "data_offsets": [24, 24]},
        "c": {"dtype": "BOOL", "shape": [], "data_offsets": [24, 25]},
    }
    text = json.dumps(entries).encode()
    return [struct.pack("<Q", len(text)) + text + bytes(25)]


def read_tokenizer(data: bytes) -> None:
    """A folder of tokenizer files, and what prompts and responses need of it."""
    with tempfile.TemporaryDirectory() as name:
        tokenizer = load_tokenizer(write_files(data, name))
    ids = tokenizer.encode_plain("Hello 你好 🤖\n")
    tokenizer.decode(ids)
    for token in (-0, 1, *ids[:3]):
        TokenBytes(tokenizer.backend)(token)
    encode_continuation(tokenizer, "next", ids)


def seed_tokenizers() -> list[bytes]:
    letters = {letter: index for index, letter in enumerate("Ġhelo")}
    pieces = [
        ("<unk>", 0.0),
        ("▁", -1.0),
        ("he", -2.0),
        *((f"<0x{b:02X}>", -9.0) for b in range(9)),
    ]
    bpe = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab=letters | {"he": 5}, merges=[("h", "e")])
    )
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    unigram = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0, byte_fallback=True))
    unigram.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    unigram.decoder = tokenizers.decoders.Metaspace()
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, "[UNK]"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "model_max_length": 512,
        "chat_template": TEMPLATE,
        "added_tokens_decoder": {"9": {"content": "<x>", "special": True}},
    }
    folders = []
    for made in (bpe, unigram, words):
        made.add_special_tokens(list(SPECIAL))
        folders.append(
            {
                "tokenizer.json": json.loads(made.to_str()),
                "tokenizer_config.json": settings,
                "generation_config.json": {"eos_token_id": [3, 4], "pad_token_id": 0},
                "config.json": {"eos_token_id": 3},
                "gigpo_jax.json": {"stop_strings": ["\n"]},
                "special_tokens_map.json": {"eos_token": {"content": "<|im_end|>"}},
            }
        )
    return dump(*folders)


def read_hf_config(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name, "config.json").write_bytes(data)
        read_config(name)


def seed_configs() -> list[bytes]:
    return dump(*(config_json(config, "float32") for config in (*SMALL.values(), VL, VL3)))


def read_gguf(data: bytes) -> None:
    """A GGUF file: header and list of tensors, then the files that are made of its metadata."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "m.gguf")
        path.write_bytes(data)
        # Inputs have no weights.
        os.truncate(path, max(len(data), 1 << 23))
        gguf = open_gguf(path)
        list_sources(gguf, convert_metadata(gguf, Path(name)))
        gguf.data.close()


def convert_metadata(gguf: GgufFile, folder: Path) -> DecoderConfig:
    contents = {
        "config.json": make_config(gguf, "float32"),
        "generation_config.json": make_generation_config(gguf),
        "tokenizer.json": make_tokenizer(gguf),
        "tokenizer_config.json": make_tokenizer_config(gguf),
    }
    return _write_contents(folder, gguf, contents)


def seed_gguf() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        file = write_gguf(Path(name, "m.gguf"))
        whole = file.read_bytes()
        gguf = open_gguf(file)
    return [whole[: min(tensor.start for tensor in gguf.tensors.values())]]


def read_gguf_fields(data: bytes) -> None:
    """The metadata of a GGUF file as JSON, of types that such a file can have."""
    fields = {key: value for key, value in parse_object(data).items() if storable(value)}
    rows = fields.get("tokenizer.ggml.tokens")
    count = len(rows) if isinstance(rows, list) and rows else 1
    tensors = {"token_embd.weight": Tensor("F32", (count, 256), 0, 0)}
    gguf = GgufFile(Path("m.gguf"), fields, tensors, None)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as name:
        convert_metadata(gguf, Path(name))


def storable(value: Any) -> bool:
    """Whether a GGUF file can have a value: texts of Unicode, numbers of 64 bits, lists of a type."""
    if isinstance(value, list):
        return all(map(storable, value)) and len({type(item) for item in value}) < 2
    if isinstance(value, str):
        return not re.search("[\ud800-\udfff]", value)
    return isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63)


def seed_gguf_fields() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        files = [
            write_gguf(Path(name, f"{kind}.gguf"), architecture=kind, split=split)
            for kind, split in (("llama", "smollm"), ("qwen2", "qwen2"))
        ]
        fields = [dict(open_gguf(file).fields) for file in files]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["<unk>", "<s>", "</s>", *byte_tokens, "▁", "a", "▁a"]
    fields.append(
        fields[0]
        | {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": pieces,
            "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 1, 1, 1],
            "tokenizer.ggml.scores": [0.0] * 259 + [-1.0, -2.0, -3.0],
            "tokenizer.ggml.padding_token_id": 0,
        }
    )
    return dump(*fields)
