"""Dense retrieval around the encoder, which is replaced by hashed bags of words."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.command_line import main
from gigpo_jax.envs.search.retrieval.bm25_index import extract_terms
from gigpo_jax.envs.search.retrieval.corpus import Passages
from gigpo_jax.envs.search.retrieval.dense_index import build_vectors, open_dense

pytest.importorskip("faiss")


def encode(texts: Sequence[str]) -> np.ndarray:
    out = np.full((len(texts), 64), 1e-3, np.float32)
    for row, text in zip(out, texts):
        for term in extract_terms(text):
            row[hashlib.blake2b(term.encode()).digest()[0] % 64] += 1
    return out / np.linalg.norm(out, axis=1, keepdims=True)


def test_it_finds_what_a_plain_product_finds(world: Path, tmp_path: Path) -> None:
    passages = Passages(world / "index")
    build_vectors(passages, encode, tmp_path / "v", lambda done: None)
    dense = open_dense(passages, str(tmp_path / "v"), encode)
    vectors = encode([passages[n].contents for n in range(len(passages))])
    queries = ["who founded the candles guild", "Alda born in", ""]
    for query, hits in zip(queries, dense.search(queries, 5)):
        scores = vectors @ encode([query])[0]
        assert [hit.score for hit in hits] == pytest.approx(
            np.sort(scores)[::-1][:5].tolist(), abs=1e-5
        )
        by_contents = {passages[n].contents: scores[n] for n in range(len(passages))}
        assert [by_contents[h.document.contents] for h in hits] == pytest.approx(
            [h.score for h in hits], abs=1e-5
        )
    assert dense.search([], 3) == []
    assert len(dense.search(["x"], 10**6)[0]) == len(passages)


def test_what_does_not_fit_is_told(world: Path, tmp_path: Path) -> None:
    import faiss

    passages = Passages(world / "index")
    with pytest.raises(InputError, match="no such file"):
        open_dense(passages, str(tmp_path / "none"), encode)
    (tmp_path / "junk").write_bytes(b"<html>")
    with pytest.raises(InputError, match="not a faiss index"):
        open_dense(passages, str(tmp_path / "junk"), encode)
    few = faiss.IndexFlatIP(64)
    few.add(encode(["a", "b"]))
    faiss.write_index(few, str(tmp_path / "few"))
    with pytest.raises(InputError, match="holds 2 vectors"):
        open_dense(passages, str(tmp_path / "few"), encode)
    assert (
        main(
            [
                "search",
                "dense",
                "--index",
                str(tmp_path),
                "--encoder",
                "x",
                "--out",
                str(tmp_path / "o"),
            ]
        )
        == 2
    )


def test_an_approximate_index_that_finds_fewer_than_wanted_gives_those(
    world: Path, tmp_path: Path
) -> None:
    import faiss

    passages = Passages(world / "index")
    vectors = encode([passages[n].contents for n in range(len(passages))])
    index = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(64), 64, 4, faiss.METRIC_INNER_PRODUCT
    )  # searches one cell of four
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "v"))
    hits = open_dense(passages, str(tmp_path / "v"), encode).search(["the river"], len(passages))[0]
    assert 0 < len(hits) < len(passages)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
