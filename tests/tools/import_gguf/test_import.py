"""GGUF files as folders, beside transformers' own reading of the same files."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.models import decoder
from gigpo_jax.models.files import folders
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.rope_scaling import LinearScaling, YarnScaling
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.tools.import_gguf.command import main

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
    write_gguf(tmp_path / "m.gguf", architecture=architecture, tied=tied, weights="+".join(TYPES))
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


def refuse(capsys: pytest.CaptureFixture[str], file: Path, out: Path, *flags: str) -> str:
    """Imports what cannot be imported; returns the line that says why."""
    before = sorted(path.name for path in out.parent.iterdir())
    capsys.readouterr()
    assert main([str(file), f"--out={out}", *flags]) == 2
    assert sorted(path.name for path in out.parent.iterdir()) == before
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("gigpo import: ")
    assert printed.err.count("\n") == 1
    # Not the name of the temporary folder that was tried.
    assert "/new" not in printed.err
    return printed.err


@pytest.mark.parametrize(
    ("changes", "tensors", "message"),
    [
        ({"general.architecture": "gemma"}, {}, "the architecture gemma is not supported"),
        ({}, {"blk.0.ffn_up.weight": None}, "has no tensor blk.0.ffn_up.weight"),
        ({}, {"blk.0.attn_q.bias": np.zeros(256, "f4")}, "has tensors that llama does not have"),
        ({}, {"output_norm.weight": np.zeros(255, "f4")}, "output_norm.weight has shape [255]"),
        ({}, {"output_norm.weight": np.full(256, np.nan, "f4")}, "NaN or infinite"),
        ({}, {"output_norm.weight": np.zeros(256, "f8")}, "has the type F64"),
        ({}, {"rope_freqs.weight": np.arange(1, 17, dtype="f4")}, "not those of Llama 3"),
        ({"llama.attention.head_count": 0}, {}, "num_attention_heads=0 must be a whole number"),
        ({"llama.attention.head_count": [8, 8]}, {}, "llama.attention.head_count is [8, 8]"),
        ({"llama.attention.head_count_kv": 3}, {}, "num_kv_heads=3 must divide num_heads=8"),
        ({"llama.attention.head_count_kv": 2}, {}, "blk.0.attn_k.weight has shape [128, 256]"),
        ({"llama.embedding_length": None}, {}, "has no llama.embedding_length"),
        ({"llama.block_count": 3}, {}, "has no tensor blk.2.attn_norm.weight"),
        ({"llama.block_count": 2**31}, {}, "num_hidden_layers=2147483648 must be"),
        ({"llama.expert_count": 8}, {}, "llama.expert_count=8 is not supported"),
        ({"llama.rope.scaling.type": "longrope"}, {}, "llama.rope.scaling.type='longrope'"),
        ({"llama.rope.scaling.type": "yarn"}, {}, "factor=0.0 must be a finite number above 0"),
        (
            {"llama.rope.scaling.factor": 4.0, "llama.rope.scaling.attn_factor": 0.5},
            {},
            "llama.rope.scaling.attn_factor=0.5 is not supported",
        ),
        ({"llama.rope.dimension_count": 16}, {}, "llama.rope.dimension_count=16 beside heads of"),
        ({"tokenizer.ggml.model": "llama"}, {}, "without all 256 tokens of bytes"),
        ({"tokenizer.ggml.model": "t5"}, {}, "the tokenizer t5 with the splits"),
        ({"tokenizer.ggml.model": None}, {}, "has no tokenizer.ggml.model"),
        ({"tokenizer.ggml.pre": "tekken"}, {}, "splits tekken is not supported"),
        ({"tokenizer.ggml.pre": None}, {}, "splits default is not supported"),
        ({"tokenizer.ggml.tokens": None}, {}, "has no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.merges": ["h zz"]}, {}, "tokenizer files cannot be read"),
        ({"tokenizer.ggml.merges": ["h"]}, {}, "its tokenizer is damaged"),
        ({"tokenizer.ggml.token_type": [1, 2]}, {}, "its tokenizer is damaged"),
        ({"tokenizer.ggml.eos_token_id": 10_000}, {}, "eos_token_id=10000 is none of 288 tokens"),
        ({"tokenizer.ggml.eot_token_id": 10_000}, {}, "eot_token_id=10000 is none of 288 tokens"),
        ({"tokenizer.chat_template": "{% for"}, {}, "chat template"),
    ],
)
def test_files_of_other_kinds_are_refused(tmp_path, capsys, changes, tensors, message):
    file = write_gguf(tmp_path / "m.gguf", changes=changes, tensors=tensors)
    assert message in refuse(capsys, file, tmp_path / "out")


def test_other_types_are_refused_and_numbers_beyond_a_dtype(tmp_path, capsys):
    file = write_gguf(tmp_path / "m.gguf", weights="TQ2_0")
    assert "has the type TQ2_0" in refuse(capsys, file, tmp_path / "out")
    file = write_gguf(file, tensors={"output_norm.weight": np.full(256, 1e5, "f4")})
    line = refuse(capsys, file, tmp_path / "out", "--dtype=float16")
    assert "output_norm.weight has NaN or infinite values in float16" in line
    run_import(file, tmp_path / "out", "bfloat16")


def test_broken_files_are_refused(tmp_path, capsys):
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    file = tmp_path / "m.gguf"

    def refuse_bytes(content: bytes) -> str:
        file.write_bytes(content)
        return refuse(capsys, file, tmp_path / "out")

    assert "is no GGUF file" in refuse_bytes(b"")
    assert "is no GGUF file" in refuse_bytes(b"PK\3\4" + whole[4:])
    assert "version 1, known are 2 and 3" in refuse_bytes(b"GGUF\1\0\0\0" + whole[8:])
    # As a big-endian machine writes 3.
    assert "version 50331648" in refuse_bytes(b"GGUF\0\0\0\3" + whole[8:])
    # Wherever the file ends: in its metadata, its list of tensors or its tensors.
    for end in [*range(4, 400, 7), *np.linspace(400, len(whole) - 1, 40).astype(int)]:
        assert "broken or cut short" in refuse_bytes(whole[:end])
    # Counts of tensors, of keys, and of the letters of the first key; and an array of numbers.
    counts = (8, 16, 24, whole.index(b"token_type") + len("token_type") + 8)
    for place in counts:
        for count in (2**63, 2**64 - 1, 10**9):
            counted = whole[:place] + struct.pack("<Q", count) + whole[place + 8 :]
            assert "broken or cut short" in refuse_bytes(counted)
    # Arrays in arrays without end.
    nested = struct.pack("<IQ", 9, 1) * 5000
    key = struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<I", 9)
    assert "broken or cut short" in refuse_bytes(b"GGUF\3\0\0\0" + key + nested)
    # Zeros, such as a download leaves, are many empty names: the second one ends the reading.
    for tensors, fields in ((0, 10**6), (10**6, 0)):
        zeros = b"GGUF\3\0\0\0" + struct.pack("<QQ", tensors, fields) + bytes(1 << 26)
        if tensors:
            one = struct.pack("<QIQIQ", 0, 1, 1, 0, 0)
            zeros = zeros[:24] + one * 2 + zeros[24:]
        assert "'' is there twice" in refuse_bytes(zeros)
    file.unlink()
    assert "no such file" in refuse(capsys, file, tmp_path / "out")
    assert "no such file" in refuse(capsys, tmp_path, tmp_path / "out")


def test_flipped_bytes_never_end_in_a_traceback(tmp_path, capsys, seed):
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    header = whole.index(b"blk.1.ffn_down.weight")
    rng = np.random.default_rng(seed)
    statuses = []
    for _ in range(60):
        content = bytearray(whole)
        content[rng.integers(4, header)] ^= int(rng.integers(1, 256))
        (tmp_path / "m.gguf").write_bytes(content)
        statuses.append(main([str(tmp_path / "m.gguf"), f"--out={tmp_path / 'out'}"]))
        capsys.readouterr()
    assert {*statuses} == {0, 2}


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, capsys, monkeypatch, small_disk):
    file = write_gguf(tmp_path / "m.gguf")
    disk = small_disk(2000)
    assert "GB are free" in refuse(capsys, file, disk / "out")
    # Others take the room in the meantime.
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert "cannot be written (No space left" in refuse(capsys, file, disk / "out")
    assert [*disk.iterdir()] == []


def test_a_missing_package_has_an_install_line(tmp_path, capsys, monkeypatch):
    file = write_gguf(tmp_path / "m.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    line = refuse(capsys, file, tmp_path / "out")
    assert "needs the package gguf" in line
    assert "; pip install --no-deps gguf" in line


def test_settings_come_from_the_metadata(tmp_path):
    # Zeros are values, too.
    changes = {"tokenizer.ggml.eot_token_id": 1, "tokenizer.ggml.eom_token_id": 0}
    changes |= {"general.sampling.temp": 0.7, "general.sampling.min_p": 0.0}
    folder = run_import(write_gguf(tmp_path / "m.gguf", changes=changes), tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-5, 10_000)
    assert (config["bos_token_id"], config["pad_token_id"]) == (1, 0)
    assert json.loads((folder / "generation_config.json").read_text()) == {
        "bos_token_id": 1,
        "eos_token_id": [2, 1, 0],
        "pad_token_id": 0,
        "do_sample": True,
        "temperature": 0.7,
        "min_p": 0.0,
    }
    assert load_tokenizer(folder).stop_token_ids == (2, 1, 0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"factor": 4.0}, LinearScaling(4.0)),
        ({"type": "linear", "factor": 2.0, "original_context_length": 128}, LinearScaling(2.0)),
        ({"type": "yarn", "factor": 4.0, "original_context_length": 128}, YarnScaling(4.0, 128)),
        # The context of the file.
        ({"type": "yarn", "factor": 2.0, "yarn_beta_fast": 16.0}, YarnScaling(2.0, 512, 16.0)),
    ],
)
def test_linear_and_yarn_scaling_are_read(tmp_path, fields, expected):
    changes = {f"qwen2.rope.scaling.{name}": value for name, value in fields.items()}
    file = write_gguf(tmp_path / "m.gguf", architecture="qwen2", changes=changes)
    assert load_hf(run_import(file, tmp_path / "out"))[0].rope_scaling == expected


def test_the_scaling_of_llama_3_is_read_from_its_divisors(tmp_path):
    frequencies = 10_000.0 ** -(np.arange(0, 32, 2) / 32)
    share = np.clip((8192 * frequencies / (2 * np.pi) - 1) / (4 - 1), 0, 1)
    factors = (1 / (share + (1 - share) / 32)).astype("f4")
    file = write_gguf(tmp_path / "m.gguf", tensors={"rope_freqs.weight": factors})
    scaling = load_hf(run_import(file, tmp_path / "out"))[0].rope_scaling
    assert scaling is not None
    assert (scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor) == (32, 1, 4)
    assert scaling.original_max_position_embeddings == 8192
    write_gguf(file, tensors={"rope_freqs.weight": np.ones(16, "f4")})
    assert load_hf(run_import(file, tmp_path / "out"))[0].rope_scaling is None


def test_texts_are_split_as_the_metadata_say(tmp_path):
    """Digits one by one, all together, or three at a time; here 12 and 123 are tokens."""
    wanted = {
        "smollm": ["1", "2", "3", "1", "2", "3"],
        "gpt-2": ["123", "123"],
        "llama-bpe": ["123", "123"],
        "qwen2": ["1", "2", "3", "1", "2", "3"],
    }
    behind_zero = {"gpt-2": ["0", "123"], "llama-bpe": ["0", "12", "3"]}
    for split, tokens in wanted.items():
        folder = run_import(write_gguf(tmp_path / "m.gguf", split=split), tmp_path / "out")
        tokenizer = load_tokenizer(folder)
        assert [tokenizer.token(index) for index in tokenizer.encode("123123")] == tokens
        if split in behind_zero:
            pieces = [tokenizer.token(index) for index in tokenizer.encode("0123")]
            assert pieces == behind_zero[split]


def test_a_model_path_that_is_a_gguf_file_names_the_command(tmp_path):
    file = write_gguf(tmp_path / "m.gguf")
    with pytest.raises(InputError, match="gigpo import"):
        folders.model_folder(str(file), "")


def test_the_command_needs_no_torch(tmp_path):
    file = write_gguf(tmp_path / "m.gguf")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from gigpo_jax.tools.import_gguf.command import main\n"
        f"sys.exit(main([{str(file)!r}, '--out', {str(tmp_path / 'out')!r}]))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert (tmp_path / "out/model.safetensors").is_file()
