"""The search engine: BM25 with the exact arithmetic of Lucene 8.11, over arrays that may be memory-mapped.

Scores are sums of float32 contributions `w - w / (1 + tf / norm)`, w = (times the term stands in the query) x idf,
added in double precision and rounded to float32; equal scores are ordered by the documents' names. The length of a
document is known only as Lucene's one-byte norm. The contribution for a term that stands once in the query is stored
with its posting.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from gigpo_jax.env_bridge.webshop.analysis import analyse_word, terms
from gigpo_jax.env_bridge.webshop.segment import words

TOP = 50
MAX_CLAUSES = 1024  # Lucene refuses a query of more different terms
_K1 = np.float32(0.9)
_B = np.float32(0.4)
_EXACT_NORMS = 24


def encode_length(length: int) -> int:
    """The one-byte norm of a document of `length` terms: exact at first, then four significant bits."""
    if length < _EXACT_NORMS:
        return length
    rest = length - _EXACT_NORMS
    bits = rest.bit_length()
    if bits < 4:
        return _EXACT_NORMS + rest
    shift = bits - 4
    return _EXACT_NORMS + ((rest >> shift) & 0x07 | (shift + 1) << 3)


def decode_length(norm: int) -> int:
    """The length that a one-byte norm stands for."""
    if norm < _EXACT_NORMS:
        return norm
    bits, shift = (norm - _EXACT_NORMS) & 0x07, ((norm - _EXACT_NORMS) >> 3) - 1
    return _EXACT_NORMS + (bits if shift < 0 else (bits | 8) << shift)


def term_key(term: str) -> int:
    """64 bits that stand for a term in the index."""
    return int.from_bytes(hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class IndexBuilder:
    """Collects documents and turns them into the arrays of an `Index`."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._term_of_word: dict[str, int] = {}
        self._vocabulary: dict[str, int] = {}
        self._terms = array("i")
        self._docs = array("i")
        self._counts = array("i")
        self._lengths = array("q")

    def add(self, name: str, text: str) -> None:
        """Indexes the next document; names are unique."""
        self._names.append(name)
        ids: list[int] = []
        known = self._term_of_word
        for word in words(text):
            term = known.get(word)
            if term is None:
                analysed = analyse_word(word)
                term = self._vocabulary.setdefault(analysed, len(self._vocabulary)) if analysed else -1
                known[word] = term
            if term >= 0:
                ids.append(term)
        counts = Counter(ids)
        self._terms.extend(counts.keys())
        self._counts.extend(counts.values())
        self._docs.extend([len(self._lengths)] * len(counts))
        self._lengths.append(len(ids))

    def arrays(self) -> dict[str, np.ndarray]:
        """The index as arrays, see `Index`."""
        lengths = np.frombuffer(self._lengths, dtype=np.int64) if self._lengths else np.zeros(0, np.int64)
        term_ids = np.frombuffer(self._terms, dtype=np.int32) if self._terms else np.zeros(0, np.int32)
        with_field = int((lengths > 0).sum())
        keys = np.fromiter((term_key(term) for term in self._vocabulary), np.uint64, len(self._vocabulary))
        if len(np.unique(keys)) != len(keys):
            raise RuntimeError("two terms share a 64-bit key; change term_key")
        rank = np.empty(len(keys), dtype=np.int32)
        key_order = np.argsort(keys)
        rank[key_order] = np.arange(len(keys), dtype=np.int32)
        sorted_terms = rank[term_ids]
        order = np.argsort(sorted_terms, kind="stable")
        document_counts = np.bincount(sorted_terms, minlength=len(keys))
        docs = (np.frombuffer(self._docs, dtype=np.int32) if self._docs else np.zeros(0, np.int32))[order]
        counts = (np.frombuffer(self._counts, dtype=np.int32) if self._counts else np.zeros(0, np.int32))[order]
        norms = np.fromiter((encode_length(length) for length in lengths.tolist()), np.uint8, len(lengths))
        average = np.float32(int(lengths.sum()) / with_field) if with_field else np.float32(1)
        idf = np.log(1 + (with_field - document_counts + 0.5) / (document_counts + 0.5)).astype(np.float32)
        inverse = norm_inverse(average)
        weights = np.repeat(idf, document_counts)
        return {
            "term_keys": keys[key_order],
            "term_starts": np.concatenate([[0], np.cumsum(document_counts)]).astype(np.int64),
            "term_idf": idf,
            "posting_docs": docs,
            "posting_counts": counts,
            "posting_scores": contribution(weights, counts, inverse[norms[docs]]),
            "doc_norms": norms,
            "doc_rank": np.argsort(np.argsort(np.array(self._names, dtype=np.str_))).astype(np.int32),
            "norm_inverse": inverse,
        }


def norm_inverse(average: np.float32) -> np.ndarray:
    """1 / (k1 (1 - b + b length / average length)) for each of the 256 norms, [256] f32."""
    lengths = np.array([decode_length(norm) for norm in range(256)], dtype=np.float32)
    one = np.float32(1)
    return (one / (_K1 * ((one - _B) + _B * lengths / average))).astype(np.float32)


def contribution(weight: np.ndarray, count: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """What a term adds to the score of a document, [n] f32, from its weight, its count there and the inverse norm."""
    return (weight - weight / (np.float32(1) + count.astype(np.float32) * inverse)).astype(np.float32)


class Index:
    """Searches the arrays that `IndexBuilder` made.

    `term_keys` [V] u64 (sorted), `term_starts` [V+1] i64 into the postings, `term_idf` [V] f32; `posting_docs` [n] i32,
    `posting_counts` [n] i32, `posting_scores` [n] f32; `doc_norms` [N] u8, `doc_rank` [N] i32 (the place of the
    document's name among all names); `norm_inverse` [256] f32.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._keys = arrays["term_keys"]
        self._starts = arrays["term_starts"]
        self._idf = arrays["term_idf"]
        self._docs = arrays["posting_docs"]
        self._counts = arrays["posting_counts"]
        self._scores = arrays["posting_scores"]
        self._norms = arrays["doc_norms"]
        self._rank = arrays["doc_rank"]
        self._inverse = np.array(arrays["norm_inverse"])
        self._analyse: Callable[[str], list[str]] = terms

    def search(self, query: str) -> np.ndarray | None:
        """The best documents for a query, best first.

        Returns:
          [<= 50] i64, empty if nothing matches; None if the query has more different terms than the engine takes.
        """
        wanted = Counter(self._analyse(query))
        if len(wanted) > MAX_CLAUSES:
            return None
        docs: list[np.ndarray] = []
        scores: list[np.ndarray] = []
        for term, times in wanted.items():
            key = np.uint64(term_key(term))
            position = int(self._keys.searchsorted(key))
            if position == len(self._keys) or self._keys[position] != key:
                continue
            part = slice(int(self._starts[position]), int(self._starts[position + 1]))
            term_docs = self._docs[part]
            docs.append(term_docs)
            if times == 1:
                scores.append(self._scores[part])
            else:
                weight = np.float32(times) * self._idf[position]
                scores.append(contribution(weight, self._counts[part], self._inverse[self._norms[term_docs]]))
        if not docs:
            return np.zeros(0, dtype=np.int64)
        return self._best(np.concatenate(docs), np.concatenate(scores))

    def _best(self, docs: np.ndarray, scores: np.ndarray) -> np.ndarray:
        total = np.bincount(docs, weights=scores).astype(np.float32)
        matched = np.flatnonzero(total)
        if len(matched) > TOP:
            found = total[matched]
            least = np.partition(found, len(found) - TOP)[len(found) - TOP]
            matched = matched[found >= least]
        return matched[np.lexsort((self._rank[matched], -total[matched]))][:TOP]
