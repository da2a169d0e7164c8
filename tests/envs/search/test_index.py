"""Corpora in, passages out: BM25 against its definition, and everything a corpus can get wrong."""

import contextlib
import gzip
import json
import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.command_line import main
from gigpo_jax.envs.search.retrieval.bm25_index import (
    DOCUMENTS_FILE,
    K1,
    MAX_TERMS,
    SCORES_FILE,
    STARTS_FILE,
    VOCABULARY,
    B,
    build_index,
    ensure_index,
    extract_terms,
    open_index,
)
from gigpo_jax.envs.search.retrieval.corpus import read_corpus
from gigpo_jax.envs.search.retrieval.retriever import Document


def write(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def bm25(query: str, texts: list[str]) -> list[float]:
    """The definition (Lucene's form: the factor k1 + 1 is left out)."""
    bags = [Counter(extract_terms(text)) for text in texts]
    average = sum(bag.total() for bag in bags) / len(bags)
    scores = []
    for bag in bags:
        score = 0.0
        for term in set(extract_terms(query)):
            frequency = sum(term in any_bag for any_bag in bags)
            idf = math.log(1 + (len(bags) - frequency + 0.5) / (frequency + 0.5))
            score += idf * bag[term] / (bag[term] + K1 * (1 - B + B * bag.total() / average))
        scores.append(score)
    return scores


def test_scores_are_those_of_the_definition_and_ties_keep_the_order(world: Path) -> None:
    index = open_index(world / "index")
    documents = list(read_corpus(world / "corpus.jsonl"))
    texts = [document.contents for document in documents]
    for query in (
        "Alda born in Amber Ford",
        "who founded the guild of candles",
        "river",
        "brook river town town",
    ):
        scores = bm25(query, texts)
        best = sorted(
            (number for number, score in enumerate(scores) if score),
            key=lambda n: (-round(scores[n], 4), n),
        )
        for topk in (1, 3, 1000):
            hits = index.search([query], topk)[0]
            assert [hit.document for hit in hits] == [documents[number] for number in best[:topk]]
            assert [hit.score for hit in hits] == pytest.approx(
                [scores[number] for number in best[:topk]], rel=1e-4
            )


def test_odd_queries_find_nothing_or_something_but_never_fail(world: Path) -> None:
    index = open_index(world / "index")
    assert index.search(["", "   ", "the of and", "zzzz", "\x00\ud800", "?!"], 3) == [[]] * 6
    assert index.search([], 3) == []
    assert len(index.search(["river " * 20_000], 3)[0]) == 3  # 100,000 characters and more
    assert index.search(["river"], 0) == [[]]


def test_a_damaged_gzipped_corpus_is_named(tmp_path: Path) -> None:
    text = "\n".join(
        json.dumps({"id": number, "contents": f"text {number}"}) for number in range(50)
    ).encode()
    packed = gzip.compress(text)
    path = tmp_path / "c.jsonl.gz"
    for place in range(0, len(packed), 7):
        path.write_bytes(packed[:place] + bytes([packed[place] ^ 0xFF]) + packed[place + 1 :])
        with contextlib.suppress(InputError):  # some bytes of the head mean nothing
            assert len(list(read_corpus(path))) == 50
    path.write_bytes(packed[:20] + b"\xff" * 9 + packed[29:])
    with pytest.raises(InputError, match=r"c\.jsonl\.gz: cannot be read"):
        list(read_corpus(path))


def test_a_gzipped_folder_and_a_command_give_the_same_index(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    rows = [
        {"id": number, "contents": f'"T{number}"\ntext number{number} \u2603'}
        for number in range(6)
    ]
    folder = tmp_path / "corpus"
    folder.mkdir()
    write(folder / "a.jsonl", rows[:3])
    with gzip.open(folder / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(map(json.dumps, rows[3:])))
    assert main(["search", "index", "--corpus", str(folder), "--out", str(tmp_path / "one")]) == 0
    from_file = ensure_index(write(tmp_path / "all.jsonl", rows))
    from_folder = open_index(tmp_path / "one")
    assert [from_folder.passages[number] for number in range(6)] == [
        from_file.passages[number] for number in range(6)
    ]
    assert from_folder.digest == from_file.digest
    assert from_folder.search(["number4"], 1)[0][0].document == Document("4", rows[4]["contents"])
    assert main(["search", "index", "--corpus", str(folder), "--out", str(tmp_path / "one")]) == 2
    assert "one: exists; name another folder" in capsys.readouterr().err
    with pytest.raises(IndexError):
        from_folder.passages[6]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the corpus is empty"),
        (b"\n\n", "the corpus is empty"),
        (b'{"id": "1", "contents": "a b"}\n{"id": "1", "contents": "c"}\n', "id '1' occurs twice"),
        (b'{"id": "1", "contents": "a b"}\n{"id": 1, "contents": "c"}\n', "id '1' occurs twice"),
        (b'{"id": "1", "contents": "caf\xe9"}\n', ":1: not UTF-8"),
        (b'{"id": "1", "contents": "a"}\n<html>\n', ":2: not JSON"),
        (b"[1]\n", "a JSON list"),
        (b'{"id": "1"}\n', 'has no "contents"'),
        (b'{"id": "1", "contents": "  "}\n', 'has no "contents"'),
        (b'{"contents": "a"}\n', "id=None"),
        (b'{"id": "1", "contents": "?!"}\n', "no passage has an index term"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_bad_corpora_are_told_and_leave_nothing_behind(
    tmp_path: Path, content: bytes, message: str
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes(content)
    with pytest.raises(InputError) as caught:
        build_index(read_corpus(corpus), tmp_path / "out")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_a_missing_damaged_or_outdated_index_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no index"):
        open_index(tmp_path)
    with pytest.raises(InputError, match="no such corpus"):
        ensure_index(tmp_path / "none.jsonl")
    corpus = write(tmp_path / "c.jsonl", [{"id": 1, "contents": "alpha"}])
    built = ensure_index(corpus)
    assert ensure_index(corpus).digest == built.digest
    write(corpus, [{"id": 1, "contents": "alpha beta"}])
    with pytest.raises(InputError, match="changed after"):
        ensure_index(corpus)
    (tmp_path / "c.jsonl.index" / "bm25" / "data.csc.index.npy").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="damaged"):
        open_index(tmp_path / "c.jsonl.index")


def test_the_arrays_are_those_of_bm25s(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, so indices that bm25s wrote and those written here rank alike."""
    for name in ("jax", "jax.lax"):  # bm25s would start it for a sort that is not used here
        monkeypatch.setitem(sys.modules, name, None)
    import bm25s

    rows = [extract_terms(document.contents) for document in read_corpus(world / "corpus.jsonl")]
    model = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
    vocabulary: dict[str, int] = {}
    numbers = [[vocabulary.setdefault(word, len(vocabulary)) for word in row] for row in rows]
    model.index(
        bm25s.tokenization.Tokenized(numbers, vocabulary),
        create_empty_token=False,
        show_progress=False,
    )
    model.save(tmp_path / "bm25", show_progress=False)
    for name in (SCORES_FILE, DOCUMENTS_FILE, STARTS_FILE):
        np.testing.assert_array_equal(
            np.load(world / "index/bm25" / name), np.load(tmp_path / "bm25" / name)
        )
    assert json.loads((world / "index/bm25" / VOCABULARY).read_text()) == vocabulary
    query = "river town in Amber Ford"
    theirs = model.get_scores_from_ids(
        [vocabulary[word] for word in extract_terms(query) if word in vocabulary]
    )
    hits = open_index(world / "index").search([query], 1000)[0]
    assert [hit.score for hit in hits] == sorted(theirs[theirs > 0].tolist(), reverse=True)


def test_bm25s_leaves_the_order_of_equal_scores_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("jax", "jax.lax"):
        monkeypatch.setitem(sys.modules, name, None)
    import bm25s

    texts = [f"river{number % 7} town" for number in range(200)]
    build_index([Document(str(n), text) for n, text in enumerate(texts)], tmp_path / "out")
    index = open_index(tmp_path / "out")
    model = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
    model.index([extract_terms(text) for text in texts], show_progress=False)
    equal = 0
    for first in range(7):
        hits = index.search([f"river{first}"], 3)[0]
        assert [int(hit.document.id) for hit in hits] == [first, first + 7, first + 14]
        rows, _ = model.retrieve([[f"river{first}"]], k=3, show_progress=False)
        equal += rows[0].tolist() == [first, first + 7, first + 14]
    assert equal < 7


def test_of_a_long_query_the_first_terms_alone_are_scored(tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(MAX_TERMS + 40)]
    build_index([Document(word, word) for word in words], tmp_path / "out")
    hits = open_index(tmp_path / "out").search([" ".join(words)], 1000)[0]
    assert [hit.document.id for hit in hits] == words[:MAX_TERMS]
