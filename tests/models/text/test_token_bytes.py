"""Bytes of tokens in the kinds of tokenizers that model folders have."""

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from gigpo_jax.models.text.token_bytes import TokenBytes
from gigpo_jax.models.text.word_tokenizer import word_tokenizer

TEXT = "a🔥 \n\té中"


def byte_level() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def byte_fallback() -> tokenizers.Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "▁"]
    scores = [(piece, -float(index)) for index, piece in enumerate(pieces)]
    made = tokenizers.Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return made


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_the_bytes_of_all_tokens_are_those_of_the_text(make):
    backend = make()
    ids = backend.encode(TEXT, add_special_tokens=False).ids
    pieces = list(map(TokenBytes(backend), ids))
    assert b"".join(pieces) == TEXT.encode()
    assert b"\xf0" in pieces  # a part of a character


def test_added_tokens_have_their_name_and_missing_ones_nothing():
    backend = byte_level()
    # "é" is a character of the byte alphabet too, where it stands for another byte.
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    backend.add_tokens([AddedToken("café", special=False)])
    token_bytes = TokenBytes(backend)
    assert token_bytes(256) == b"<|end|>"
    assert token_bytes(257) == "café".encode()
    assert token_bytes(258) == b""


def test_words_have_their_text():
    tokenizer = word_tokenizer(["go north"])
    ids = tokenizer.encode("go north")
    assert list(map(TokenBytes(tokenizer.backend), ids)) == [b"go", b"north"]
