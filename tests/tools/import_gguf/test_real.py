"""The real model of `make real`, beside transformers' own reading of its file."""

import random
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.models import decoder
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.tools.import_gguf.command import main
from tests.tools.import_gguf.real_file import FILE

pytestmark = pytest.mark.slow
for package in ("torch", "accelerate"):
    pytest.importorskip(package)
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "List three fruits:\n1.",
    "def fibonacci(n):\n    ",
    "import numpy as np\n\nx = np.",
    '{"name": "Ada", "age":',
    "🙂🙃 The meaning of 🤖 is",
    "👩‍👩‍👧 family",
    "你好，我叫",
    "北京是中国的",
    "¿Dónde está la",
    "Der Zug fährt um 12:30",
    "1 + 1 = 2\n2 + 2 =",
    "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nOpen the drawer.<|im_end|>\n<|im_start|>assistant\n<action>",
    "SELECT * FROM users WHERE",
    "\tindented\r\nline",
    "مرحبا",
    "A" * 40,
    " ",
)
LENGTH = 160
PIECES = (
    "You see drawer 1, drawer 2 and a key.",
    "go to countertop 1",
    "<think>",
    "</action>",
    "<|im_end|>",
    "\n",
    "  ",
    "12:30",
    "é",
    "你好",
    "🤖",
    "\u200b",
    "\u202e",
    "\r\n",
    "\x00",
    "don't",
    "ALL CAPS",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("real") / "smollm2"
    assert main([str(FILE), "--out", str(out), "--dtype=float32"]) == 0
    return out


@pytest.fixture(scope="module")
def theirs():
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        FILE.parent, gguf_file=FILE.name, dtype=torch.float32
    )
    model.generation_config = transformers.GenerationConfig()  # no end: all 64 tokens
    return model


def random_text(rng: random.Random) -> str:
    def draw() -> str:
        if rng.random() < 0.7:
            return rng.choice(PIECES)
        # Any character but a surrogate.
        number = rng.randrange(0x110000 - 0x800)
        return chr(number if number < 0xD800 else number + 0x800)

    return "".join(draw() for _ in range(rng.randrange(1, 12)))


def test_token_ids_of_ten_thousand_texts(folder):
    import transformers
    from tokenizers.pre_tokenizers import Digits, Sequence

    wanted = transformers.AutoTokenizer.from_pretrained(FILE.parent, gguf_file=FILE.name)
    # transformers does not read the name of the splits: "smollm" takes digits apart first. As it is,
    # 174 of these texts have other tokens.
    backend = wanted.backend_tokenizer
    backend.pre_tokenizer = Sequence([Digits(individual_digits=True), backend.pre_tokenizer])
    tokenizer = load_tokenizer(folder)
    rng = random.Random(0)
    for _ in range(10_000):
        text = random_text(rng)
        assert tokenizer.encode(text) == wanted.encode(text, add_special_tokens=False), repr(text)


def test_logits_and_greedy_texts(folder, theirs):
    import torch

    tokenizer = load_tokenizer(folder)
    config, params = load_hf(folder, dtype=jnp.float32)
    execution = decoder.Execution(dtype=jnp.float32)
    for prompt in PROMPTS:
        ids = torch.asarray([tokenizer.encode(prompt)])
        with torch.no_grad():
            text = theirs.generate(ids, max_new_tokens=64, do_sample=False)
            wanted = theirs(text).logits[0].numpy()
        # One length, one program: what follows a token does not change its logits.
        row = np.zeros((1, LENGTH), np.int32)
        row[0, : text.shape[1]] = text.numpy()
        hidden = decoder.hidden_states(config, params, jnp.asarray(row), execution=execution)
        ours = np.asarray(decoder.score_tokens(config, params, hidden))[0, : text.shape[1]]
        np.testing.assert_allclose(ours, wanted, atol=1e-3)
        # Each token of their greedy text is the first choice of ours too.
        start = ids.shape[1] - 1
        assert ours[start:-1].argmax(-1).tolist() == text[0, start + 1 :].tolist(), prompt
