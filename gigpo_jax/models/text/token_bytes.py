"""The bytes that each token stands for, also of tokens that hold a part of a character."""

import json
import re

import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # of tokenizers with a byte fallback
_SPACE = "▁"  # in pieces of SentencePiece


class TokenBytes:
    """Bytes of the tokens of a tokenizer."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Reads which kind of decoder the tokenizer has."""
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._added = {index: token.content for index, token in added.items()}
        # Names of the decoder and of its steps.
        decoder = backend.decoder
        text = "" if decoder is None else json.dumps(json.loads(decoder.__getstate__()))
        self._has_alphabet = '"ByteLevel"' in text
        self._has_byte_tokens = '"ByteFallback"' in text
        self._has_spaces = '"Metaspace"' in text or '"\\u2581"' in text

    def __call__(self, token_id: int) -> bytes:
        """Returns the bytes that a token stands for; none for an id without a token.

        A token of a part of a character has its part. A special token has its name.
        """
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._has_alphabet and all(character in _ALPHABET for character in token):
            return bytes(_ALPHABET[character] for character in token)
        byte = _BYTE_TOKEN.fullmatch(token)
        if self._has_byte_tokens and byte:
            return bytes([int(byte[1], 16)])
        if self._has_spaces:
            return token.replace(_SPACE, " ").encode()
        return self._backend.decode([token_id]).encode()


def _byte_alphabet() -> dict[str, int]:
    """Returns the characters of byte-level tokens, as GPT-2 has them, and their bytes.

    Printable bytes are the characters of the same number. The other bytes are the characters from
    256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()
