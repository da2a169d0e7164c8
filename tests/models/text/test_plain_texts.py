"""The BOS token of plain texts, and pieces of chats in SentencePiece's spelling."""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from gigpo_jax.models.text.chat_messages import chat_text
from gigpo_jax.models.text.continuation import encode_continuation
from gigpo_jax.models.text.tokenizer import Tokenizer, load_tokenizer
from tests.models.text.folders import write_tokenizer

LLAMA = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start|>' + m['role'] + '\\n' + m['content'] + "
    "'<|eot|>' }}{% endfor %}{{ '<|start|>assistant\\n' }}"
)
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + eos_token }}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + m['content'] + "
    "' [/INST]' }}{% else %}{{ ' ' + m['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)


def test_plain_texts_begin_with_bos_and_chats_have_one(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    special = ("<|pad|>", "<|start|>", "<|eot|>")
    folder = write_tokenizer(
        tmp_path / "model", template=LLAMA, eos="<|eot|>", bos="<|bot|>", special=special
    )
    ours = load_tokenizer(folder)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    bos = ours.token_id("<|bot|>")
    assert ours.encode_plain("abc") == theirs("abc").input_ids == [bos, *ours.encode("abc")]
    assert ours.encode_chat("hi").count(bos) == 1
    assert bos not in encode_continuation(ours, "next", ours.encode("go"))
    without = load_tokenizer(write_tokenizer(tmp_path / "without"))
    assert without.encode_plain("abc") == without.encode("abc")


def sentencepiece(folder: Path, kind: str, template: str) -> Tokenizer:
    """As TinyLlama's ("normalizer") and Llama 2's new one ("first")."""
    letters = dict.fromkeys("▁<|>/[]\nabcdefghijklmnopqrstuvwxyzINST ")
    special = ["<unk>", "<s>", "</s>"]
    vocabulary = {token: number for number, token in enumerate([*special, *letters])}
    backend = tokenizers.Tokenizer(BPE(vocabulary, [], unk_token="<unk>"))
    if kind == "normalizer":
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        backend.decoder = decoders.Replace("▁", " ")
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        backend.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    folder.mkdir()
    (folder / "tokenizer.json").write_text(backend.to_str())
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder)


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("template", [ZEPHYR, LLAMA2], ids=["zephyr", "llama2"])
@pytest.mark.parametrize("kind", ["normalizer", "first"])
def test_a_conversation_has_the_tokens_of_the_whole_chat(
    kind: str, template: str, ended: bool, tmp_path: Path
) -> None:
    tokenizer = sentencepiece(tmp_path / "model", kind, template)
    messages = [
        {"role": "user", "content": "look at it"},
        {"role": "assistant", "content": "go"},
        {"role": "user", "content": "next one"},
    ]
    whole = tokenizer.encode(chat_text(tokenizer, messages))
    prompt = tokenizer.encode_chat("look at it")
    # What stands between prompt and continuation in the chat; Llama 2's spaces are sampled.
    start = len(prompt)
    letters = [tokenizer.token_id(letter) for letter in "go"]
    place = next(i for i in range(start, len(whole)) if whole[i : i + 2] == letters) + 2
    end = whole.index(tokenizer.token_id("</s>"), place) + 1
    response = whole[start : end if ended else place]
    rest = encode_continuation(tokenizer, "next one", response)
    assert prompt + response + rest == whole
