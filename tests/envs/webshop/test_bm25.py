"""The search engine against a plain loop over documents, and its one-byte lengths."""

import random
import sys

import numpy as np
import pytest

from gigpo_jax.envs.webshop.search import bm25
from gigpo_jax.envs.webshop.search.index_terms import analyse_text

WORDS = [f"word{i}" for i in range(30)] + ["tea", "teas", "running", "the", "café", "t-shirt"]


def _slow_search(names, texts, query):
    """BM25 in Python floats of the right precision, a document at a time."""
    documents = [analyse_text(text) for text in texts]
    lengths = [len(document) for document in documents]
    count = sum(length > 0 for length in lengths)
    average = np.float32(sum(lengths) / count)
    unit = np.float32(1)
    k1 = np.float32(0.9)
    b = np.float32(0.4)
    scores = {}
    for doc, document in enumerate(documents):
        total = 0.0
        matches = False
        length = np.float32(bm25.decode_length(bm25.encode_length(len(document))))
        inverse = unit / (k1 * ((unit - b) + b * length / average))
        for term in dict.fromkeys(analyse_text(query)):
            if term in document:
                matches = True
                frequency = sum(term in terms for terms in documents)
                idf = np.float32(np.log(1 + (count - frequency + 0.5) / (frequency + 0.5)))
                weight = np.float32(analyse_text(query).count(term)) * idf
                total += float(
                    weight - weight / (unit + np.float32(document.count(term)) * inverse)
                )
        if matches:
            scores[doc] = np.float32(total)
    return sorted(scores, key=lambda doc: (-scores[doc], names[doc]))[:50]


@pytest.mark.parametrize("common", [4096, 20])
def test_top_50_is_that_of_a_plain_loop(monkeypatch, common):
    monkeypatch.setattr(bm25, "_COMMON", common)  # few documents take the way of many
    rng = random.Random(3)
    texts = [
        " ".join(rng.choices(WORDS, k=rng.choice((0, 1, 3, 8, 40)), weights=range(1, 37)))
        for _ in range(150)
    ]
    names = [f"B{rng.randrange(10**8):08d}{i}" for i in range(len(texts))]
    builder = bm25.IndexBuilder()
    for name, text in zip(names, texts):
        builder.add(name, text)
    index = bm25.Index(builder.build_arrays())
    queries = [" ".join(rng.choices(WORDS, k=rng.choice((1, 2, 4, 9)))) for _ in range(60)]
    for query in [*queries, "tea", "tea tea teas", "the", "nowhere", ""]:
        assert index.search(query).tolist() == _slow_search(names, texts, query), query


def test_the_package_bm25s_ranks_otherwise(monkeypatch):
    """It computes with lengths as they are, where Lucene has one-byte norms."""
    for name in ("jax", "jax.lax"):  # bm25s would start it
        monkeypatch.setitem(sys.modules, name, None)
    import bm25s

    rng = random.Random(3)
    texts = [" ".join(rng.choices(WORDS, k=rng.randrange(40, 300))) for _ in range(150)]
    builder = bm25.IndexBuilder()
    for number, text in enumerate(texts):
        builder.add(f"{number:03d}", text)
    index = bm25.Index(builder.build_arrays())
    model = bm25s.BM25(k1=0.9, b=0.4, method="lucene", backend="numpy")
    model.index([analyse_text(text) for text in texts], show_progress=False)
    equal = 0
    for query in WORDS[:30]:
        scores = model.get_scores(analyse_text(query))
        best = np.lexsort((np.arange(len(texts)), -scores))[:50]
        equal += index.search(query).tolist() == best.tolist()
    assert equal == 0


def test_too_many_terms_are_refused():
    builder = bm25.IndexBuilder()
    builder.add("a", "tea")
    index = bm25.Index(builder.build_arrays())
    assert index.search(" ".join(f"w{i}" for i in range(1023)) + " tea").tolist() == [0]
    assert index.search(" ".join(f"w{i}" for i in range(1024)) + " tea") is None


def test_lengths_are_exact_at_first_and_rounded_down_later():
    decoded = [bm25.decode_length(bm25.encode_length(length)) for length in range(3000)]
    assert decoded[:40] == list(range(40))
    assert decoded[40:44] == [40, 40, 42, 42]
    assert all(
        0 <= length - short < max(1, length / 8) for length, short in zip(range(3000), decoded)
    )
    assert all(bm25.encode_length(bm25.decode_length(norm)) == norm for norm in range(200))
