"""Encoders from folders: e5's prefix, cut, mean and length, against one text at a time."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.command_line import main
from gigpo_jax.envs.search.retrieval.corpus import Passages
from gigpo_jax.envs.search.retrieval.dense_index import open_dense
from gigpo_jax.envs.search.retrieval.encoder import load_encoder
from gigpo_jax.envs.search.retrieval.service import Service
from tests.envs.search.encoders import WORDS, write_bert, write_onnx, write_tokenizer

pytestmark = pytest.mark.slow

TEXTS = [
    "who founded the guild",
    "",
    "river",
    "the misty ferry \u2603 \ud800",
    "born in " * 400,
    "Misty Ferry",
] * 20


def ids(text: str) -> list[int]:
    """Tokens by hand: [CLS], words or [UNK], [SEP], 256 at most."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS.split()]
    words = text.lower().replace(":", " : ").replace("?", " ? ").split()
    return [2, *[vocabulary.index(word) if word in vocabulary else 1 for word in words][:254], 3]


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def test_onnx_gives_normalised_means_of_real_tokens(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    table = write_onnx(tmp_path / "m")
    vectors = load_encoder(str(tmp_path / "m"), "query: ")(TEXTS)
    expected = [unit(table[ids("query: " + text.replace("\ud800", "?"))].mean(0)) for text in TEXTS]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert vectors.dtype == np.float32
    passage_vectors = load_encoder(str(tmp_path / "m"), "passage: ")(TEXTS[:1])
    np.testing.assert_allclose(
        passage_vectors[0], unit(table[ids("passage: " + TEXTS[0])].mean(0)), atol=1e-6
    )


def test_transformers_gives_for_many_texts_what_it_gives_for_each_alone(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from transformers import BertModel

    write_bert(tmp_path / "m")
    (tmp_path / "m" / "1_Pooling").mkdir()
    (tmp_path / "m" / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    vectors = load_encoder(str(tmp_path / "m"), "query: ")(TEXTS[:7])
    model = BertModel.from_pretrained(tmp_path / "m").eval()
    for text, vector in zip(TEXTS[:7], vectors, strict=True):
        with torch.inference_mode():
            tokens = torch.tensor([ids("query: " + text.replace("\ud800", "?"))])
            states = model(tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state[0]
        np.testing.assert_allclose(vector, unit(states.numpy().mean(0)), atol=2e-5)


def test_vectors_are_built_and_served_by_the_commands(world: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("faiss")
    table = write_onnx(tmp_path / "m", inputs=("input_ids",))
    command = [
        "search",
        "dense",
        "--index",
        str(world / "index"),
        "--encoder",
        str(tmp_path / "m"),
        "--out",
        str(tmp_path / "v.faiss"),
    ]
    assert main(command) == 0
    assert main(command) == 2  # it is there already
    passages = Passages(world / "index")
    encode = load_encoder(str(tmp_path / "m"), "passage: ")
    everything = encode([passages[n].contents for n in range(len(passages))])
    np.testing.assert_allclose(
        everything[:9], [encode([passages[n].contents])[0] for n in range(9)], atol=1e-6
    )
    dense = open_dense(
        passages, str(tmp_path / "v.faiss"), load_encoder(str(tmp_path / "m"), "query: ")
    )
    best = dense.search(["who founded the candles guild"], 3)[0]
    query = unit(table[ids("query: who founded the candles guild")].mean(0))
    assert [hit.score for hit in best] == pytest.approx(
        np.sort(everything @ query)[::-1][:3].tolist(), abs=1e-5
    )
    command = [
        sys.executable,
        "-m",
        "gigpo_jax.envs.search.server",
        "--corpus",
        str(world / "index"),
    ]
    command += [
        "--port",
        "0",
        "--faiss",
        str(tmp_path / "v.faiss"),
        "--encoder",
        str(tmp_path / "m"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            from gigpo_jax.envs.search.retrieval.client import RetrieverClient

            assert process.stdout is not None
            client = RetrieverClient(process.stdout.readline().strip())
            served = client.search(["who founded the candles guild", "river"], 3)
            client.close()
        finally:
            process.terminate()
    assert [hit.document for hit in served[0]] == [hit.document for hit in best]
    assert len(served[1]) == 3
    assert Service(dense, {})._together


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("nothing", "no such folder"),
        ("tokenizer", "tokenizer.json cannot be read"),
        ("onnx", "cannot be loaded"),
        ("inputs", "takes pixels"),
        ("pooling", "does not use mean pooling"),
        ("weights", "cannot be loaded"),
        ("width", "vectors of 4 numbers, but the encoder"),
    ],
)
def test_folders_that_do_not_serve_are_told(
    world: Path, tmp_path: Path, spoil: str, message: str
) -> None:
    pytest.importorskip("onnxruntime")
    faiss = pytest.importorskip("faiss")
    folder = tmp_path / "m"
    if spoil == "weights":
        write_tokenizer(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    elif spoil != "nothing":
        write_onnx(folder, inputs=("pixels",) if spoil == "inputs" else ("input_ids",))
    if spoil == "tokenizer":
        (folder / "tokenizer.json").write_text("<html>")
    if spoil == "onnx":
        (folder / "onnx" / "model.onnx").write_bytes(b"<html>")
    if spoil == "pooling":
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    passages = Passages(world / "index")
    if spoil == "width":
        vectors = faiss.IndexFlatIP(4)
        vectors.add(np.zeros((len(passages), 4), np.float32))
        faiss.write_index(vectors, str(tmp_path / "v"))
    with pytest.raises(InputError) as caught:
        open_dense(passages, str(tmp_path / "v"), load_encoder(str(folder), ""))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
