"""Tokenizers that know whole words, for models with random weights."""

import json
import re
import string
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from gigpo_jax.models.text.tokenizer import Tokenizer

TAGS = (
    "<think>",
    "</think>",
    "<action>",
    "</action>",
    "<search>",
    "</search>",
    "<answer>",
    "</answer>",
)
PAD = "<pad>"
BOS = "<bos>"
SEP = "<sep>"
EOS = "<eos>"
UNK = "<unk>"
_WORD = r"[a-z0-9_]+(?:[/'-][a-z0-9_]+)*"  # "in/on", "don't" and "mid-air" are words
_MARK = r"[^\sa-z0-9_]"
_TAG_OR_KEY = '</?[a-z]+>|"[a-z]+":'  # a tag, or a key of JSON
_PIECE = f"{_TAG_OR_KEY}|{_WORD}|{_MARK}"
_WORD_CHAT = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ message['content'] + '<eos>' }}"
    "{% else %}{{ '<bos>' + message['content'] + '<sep>' }}{% endif %}{% endfor %}"
)


def split_words(text: str) -> list[str]:
    """Splits a text into the tokens of a word tokenizer: words, tags and marks."""
    return re.findall(_PIECE, text.lower())


def word_tokenizer(words: Iterable[str], special: Sequence[str] = ()) -> Tokenizer:
    """Makes a tokenizer of whole words.

    It is for models with a vocabulary of hundreds. Lower-case words, numbers, punctuation marks,
    response tags and keys of JSON (`"action":`) are one token each; an unknown word is spelled in
    characters. `decode` returns any text of ASCII letters, digits and punctuation in lower case,
    with one space between words and none before a mark, around "[" (`click[red]`) or around a dot
    between digits. A chat prompt is "<bos>" + text + "<sep>"; responses end with "<eos>".

    Args:
      words: texts with the words of the vocabulary.
      special: more special tokens, which get the last ids.
    """
    pieces: set[str] = set()
    for text in words:
        pieces.update(split_words(text))
    characters = string.ascii_lowercase + string.digits + "_"
    vocabulary = [PAD, BOS, SEP, EOS, UNK, *TAGS, *string.punctuation.replace("_", ""), *characters]
    # WordPiece spells unknown words by these: the inside of a word needs pieces of its own.
    vocabulary += ["##" + character for character in characters + "/'-"]
    # Sorted, because ids must not depend on the order of the texts or of a set.
    vocabulary += sorted(pieces - set(vocabulary))
    ids = {token: index for index, token in enumerate(vocabulary)}

    # Unknown tags and keys are spelled: only those of the vocabulary are split off whole.
    pattern = "|".join([*filter(re.compile(_TAG_OR_KEY).fullmatch, vocabulary), _WORD, _MARK])
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece(ids, unk_token=UNK, continuing_subword_prefix="##")
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
        ]
    )
    # `Fuse` first: `Replace` sees one string at a time, and a space and its mark come from two
    # tokens.
    steps = [decoders.WordPiece(prefix="##", cleanup=False), decoders.Fuse()]
    steps += [decoders.Replace(f"{mark} ", mark) for mark in (*TAGS[::2], "(", "[")]
    steps += [decoders.Replace(f" {mark}", mark) for mark in (*TAGS[1::2], *".,:;!?)][")]
    steps.append(decoders.Replace(tokenizers.Regex(r"(?<=[0-9])\. (?=[0-9])"), "."))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(
        [
            tokenizers.AddedToken(t, special=True, normalized=False)
            for t in [*vocabulary[:5], *special]
        ]
    )
    special_tokens = {
        "pad_token": PAD,
        "bos_token": BOS,
        "sep_token": SEP,
        "eos_token": EOS,
        "unk_token": UNK,
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # Beside a config.json of type qwen2, transformers 5 puts its byte-pair class in place of
        # the one named above, unless there is an auto_map; without trust_remote_code it is
        # otherwise ignored.
        "auto_map": {"AutoTokenizer": ["", ""]},
        **special_tokens,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
        "chat_template": _WORD_CHAT,
    }
    files = {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": json.dumps(config, indent=2).encode(),
    }
    return Tokenizer(tokenizer, special_tokens, _WORD_CHAT, files=files, source="word tokenizer")
