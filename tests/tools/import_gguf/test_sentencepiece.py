"""SentencePiece's tokenizer of a GGUF file, beside transformers' own reading of the same file."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from gigpo_jax.models.text.continuation import encode_continuation
from gigpo_jax.models.text.token_bytes import TokenBytes
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.tools.import_gguf.command import main

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
from tests.tools.import_gguf.files import WIDTH, write_gguf  # noqa: E402

SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")
TYPES = (2, 3, 3, 3, 4)  # unknown, control, user-defined
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
PIECES = (
    "You are in the middle of a room. You see a drawer 1, a drawer 2 and a desklamp.",
    "go to countertop 1",
    "def first(n: int) -> int:\n    return n[0] if n else None\n",
    '{"name": "Ada", "age": 36}',
    "你好，世界",
    "北京是中国的首都",
    "🤖",
    "👩‍👩‍👧",
    "ça va",
    "مرحبا",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "\x00",
    "▁",
    "\u200b",
    "<s>",
    "</s>",
    "<unk>",
    "[INST]",
    "<0x0A>",
    "12345",
)


def make_pieces() -> dict[str, Any]:
    """Metadata of a tokenizer whose pieces come from these texts, longer ones with lower scores."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False)
    trained.train_from_iterator([f"{piece} " * 3 for piece in PIECES[:10]], trainer)
    vocabulary = trained.get_vocab()
    learned = sorted(vocabulary, key=lambda piece: (len(piece) == 1, vocabulary[piece]))
    pieces = [piece for piece in learned if piece not in SPECIAL]
    rest = len(SPECIAL) + len(BYTES)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.tokens": [*SPECIAL, *BYTES, *pieces],
        # Several pieces of one score, as unknown files may have them.
        "tokenizer.ggml.scores": [0.0] * rest + [-float(i // 3) for i in range(len(pieces))],
        "tokenizer.ggml.token_type": [*TYPES, *[6] * 256, *[1] * len(pieces)],
        "tokenizer.ggml.add_bos_token": None,
        "tokenizer.ggml.padding_token_id": None,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": TEMPLATE,
    }


def write_file(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    fields = make_pieces() | (changes or {})
    rows = len(fields["tokenizer.ggml.tokens"])
    embedding = np.random.default_rng(0).standard_normal((rows, WIDTH)).astype("f4")
    tensors = {"token_embd.weight": embedding}
    return write_gguf(folder / "m.gguf", changes=fields, tensors=tensors)


def import_file(file: Path) -> Path:
    assert main([str(file), "--out", str(file.parent / "out")]) == 0
    return file.parent / "out"


def random_text(rng: random.Random) -> str:
    def draw() -> str:
        if rng.random() < 0.8:
            return rng.choice(PIECES)
        # Any character but a surrogate.
        number = rng.randrange(0x110000 - 0x800)
        return chr(number if number < 0xD800 else number + 0x800)

    return "".join(draw() for _ in range(rng.randrange(1, 9)))


def test_ids_and_texts_of_four_thousand_texts(tmp_path, seed):
    folder = import_file(write_file(tmp_path))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    again = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer(folder)
    rng = random.Random(seed)
    texts = ["", *PIECES, *(random_text(rng) for _ in range(4000))]
    for text in texts:
        wanted = theirs.encode(text)
        assert ours.encode_plain(text) == wanted, repr(text)
        assert ours.encode(text) == wanted[1:]
        assert again.encode(text) == wanted
        assert ours.decode(wanted) == theirs.decode(wanted, skip_special_tokens=True)
    # Pieces of several letters, bytes of characters without a piece, and BOS before plain text.
    tokens = [ours.token(index) for index in ours.encode_plain("You see ☃")]
    assert tokens[:2] == ["<s>", "▁You"]
    assert tokens[-3:] == ["<0xE2>", "<0x98>", "<0x83>"]
    assert (again.bos_token_id, again.eos_token_id, again.unk_token_id) == (1, 2, 0)


def test_a_chat_continues_as_a_whole_one(tmp_path):
    folder = import_file(write_file(tmp_path))
    ours = load_tokenizer(folder)
    assert ours.stop_token_ids == (2,)
    response = [*ours.encode("go to countertop 1"), 2]
    ids = ours.encode_chat("look") + response + encode_continuation(ours, "a desklamp", response)
    contents = {"user": ("look", "a desklamp"), "assistant": ("go to countertop 1",)}
    messages = [
        {"role": role, "content": contents[role][place]}
        for role, place in (("user", 0), ("assistant", 0), ("user", 1))
    ]
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert ids == theirs.apply_chat_template(messages, return_dict=False)
    assert TokenBytes(ours.backend)(ours.encode("☃")[-1]) == b"\x83"


def test_a_file_without_a_space_before_texts(tmp_path):
    fields = {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    folder = import_file(write_file(tmp_path, fields))
    ours = load_tokenizer(folder)
    assert ours.token(ours.encode_plain("You")[0]) == "You"
    assert ours.decode(ours.encode(" You")) == " You"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.scores": None}, "has no tokenizer.ggml.scores"),
        ({"tokenizer.ggml.scores": [0.0]}, "its tokenizer is damaged"),
        ({"tokenizer.ggml.scores": ["a"] * 3}, "its tokenizer is damaged"),
    ],
)
def test_damaged_scores_are_refused(tmp_path, capsys, changes, message):
    file = write_file(tmp_path, changes)
    assert main([str(file), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_scores_decide_the_order_of_merges(tmp_path):
    fields = make_pieces()
    names = [*SPECIAL, *BYTES, "▁", "a", "b", "c", "ab", "bc", "▁a"]
    scores = [0.0] * (len(names) - 3) + [-2.0, -1.0, -3.0]
    fields |= {
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [*TYPES, *[6] * 256, *[1] * 7],
    }
    folder = import_file(write_file(tmp_path, fields))
    ours = load_tokenizer(folder)
    assert [ours.token(index) for index in ours.encode("abc")] == ["▁a", "bc"]
    merges = json.loads((folder / "tokenizer.json").read_text())["model"]["merges"]
    assert merges == [["b", "c"], ["a", "b"], ["▁", "a"]]
