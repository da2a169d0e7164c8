"""GGUF files as folders, beside transformers' own reading of the same files."""

import json
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.models import decoder
from gigpo_jax.models.files import folders
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.tools.import_gguf.__main__ import main

gguf = pytest.importorskip("gguf")
from tests.tools.import_gguf.files import write_gguf  # noqa: E402

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
TEXTS = (
    "hello hello 1234\n",
    "it's 12:30, ça va?\r\n\r\n  x",
    "你好 🤖​",
    "<|im_start|>a<|im_end|>",
)


def run_import(file: Path, out: Path, dtype: str = "float32") -> Path:
    assert main([str(file), "--out", str(out), f"--dtype={dtype}"]) == 0
    return out


def our_logits(folder: Path, ids: np.ndarray) -> np.ndarray:
    config, params = load_hf(folder, dtype=jnp.float32)
    execution = decoder.Execution(dtype=jnp.float32)
    hidden = decoder.hidden_states(config, params, jnp.asarray(ids), execution=execution)
    return np.asarray(decoder.score_tokens(config, params, hidden))


@pytest.mark.parametrize(
    ("architecture", "tied"), [("llama", True), ("qwen2", False), ("qwen3", True)]
)
def test_logits_are_those_of_transformers_reading(tmp_path, architecture, tied):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    write_gguf(tmp_path / "m.gguf", architecture=architecture, tied=tied)
    folder = run_import(tmp_path / "m.gguf", tmp_path / "out")
    ids = np.random.default_rng(1).integers(0, 260, (2, 24))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="m.gguf", dtype=torch.float32
    )
    with torch.no_grad():
        wanted = theirs(torch.asarray(ids)).logits.numpy()
    np.testing.assert_allclose(our_logits(folder, ids), wanted, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("weights", TYPES)
def test_every_type_of_weights_is_read(tmp_path, weights):
    write_gguf(tmp_path / "m.gguf", weights=weights)
    _, params = load_hf(run_import(tmp_path / "m.gguf", tmp_path / "out"), dtype=jnp.float32)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    stored = next(tensor for tensor in reader.tensors if tensor.name == "blk.0.ffn_up.weight")
    wanted = gguf.dequantize(stored.data, stored.tensor_type)
    np.testing.assert_array_equal(params["layers"]["up"]["kernel"][0].T, wanted)


@pytest.mark.parametrize(
    ("split", "architecture"),
    [("smollm", "llama"), ("qwen2", "qwen2"), ("qwen2", "qwen3"), ("llama-bpe", "llama")],
)
def test_tokens_and_template_are_read_by_transformers_too(tmp_path, split, architecture):
    transformers = pytest.importorskip("transformers")
    write_gguf(tmp_path / "m.gguf", split=split, architecture=architecture)
    folder = run_import(tmp_path / "m.gguf", tmp_path / "out")
    tokenizer = load_tokenizer(folder)
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = loaded.encode(text)
        assert loaded.decode(ids) == text
        assert tokenizer.encode(text) == ids
    message = [{"role": "user", "content": "hello"}]
    assert loaded.apply_chat_template(message, tokenize=False).startswith("<|im_start|>user\nhello")
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (1, 2, 0)


def test_a_file_that_asks_for_bos_has_it_before_plain_text(tmp_path):
    transformers = pytest.importorskip("transformers")
    write_gguf(tmp_path / "m.gguf", bos=True)
    folder = run_import(tmp_path / "m.gguf", tmp_path / "out")
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    assert loaded.encode("hello")[0] == 1
    assert loaded.encode("hello", add_special_tokens=False)[0] != 1


def test_places_that_fill_the_matrix_are_no_tokens(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    folder = run_import(tmp_path / "m.gguf", tmp_path / "out")
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 288
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(vocabulary) == 3 + 256 + 7


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def cut_in_header(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:700])


def other_file(file: Path) -> None:
    file.write_bytes(b"PK\x03\x04" + bytes(100))


def other_architecture(file: Path) -> None:
    write_gguf(file, architecture="gemma")


def other_tokenizer(file: Path) -> None:
    write_gguf(file, split="tekken")


def other_type(file: Path) -> None:
    write_gguf(file, weights="TQ2_0")


def no_file(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "cut short"),
        (cut_in_header, "cut short"),
        (other_file, "is no GGUF file"),
        (other_architecture, "the architecture gemma is not supported"),
        (other_tokenizer, "splits tekken is not supported"),
        (other_type, "TQ2_0"),
        (no_file, "no such file"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_leaves_nothing(tmp_path, capsys, damage, message):
    file = write_gguf(tmp_path / "m.gguf")
    damage(file)
    assert main([str(file), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir() if path != file] == []


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    file = write_gguf(tmp_path / "m.gguf")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 1000))
    assert main([str(file), "--out", str(tmp_path / "out")]) == 2
    assert "GB are free" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_model_path_that_is_a_gguf_file_names_the_command(tmp_path):
    file = write_gguf(tmp_path / "m.gguf")
    with pytest.raises(InputError, match="gigpo import"):
        folders.model_folder(str(file), "")


def test_the_command_needs_no_torch(tmp_path):
    file = write_gguf(tmp_path / "m.gguf")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from gigpo_jax.tools.import_gguf.__main__ import main\n"
        f"sys.exit(main([{str(file)!r}, '--out', {str(tmp_path / 'out')!r}]))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert (tmp_path / "out/model.safetensors").is_file()
