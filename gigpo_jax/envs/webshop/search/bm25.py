"""BM25 with the arithmetic of Lucene 8.11, over arrays that may be memory-mapped.

Scores are sums of float32 contributions `w - w / (1 + tf / norm)`, w = (count in the query) x idf, added in double
precision and rounded to float32; ties are ordered by the documents' names. Document lengths are Lucene's one-byte
norms. The contribution of a term that occurs once in the query is stored with its posting.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gigpo_jax.envs.webshop.search.index_terms import analyse_word, terms
from gigpo_jax.envs.webshop.search.word_segmentation import words

TOP = 50
MAX_CLAUSES = 1024  # Lucene refuses queries with more distinct terms
# Terms in more than 4,096 documents and in more than a fifth of all are added only where they can still matter.
_COMMON, _COMMON_SHARE = 4096, 5
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
    """The length of a one-byte norm."""
    if norm < _EXACT_NORMS:
        return norm
    bits, shift = (norm - _EXACT_NORMS) & 0x07, ((norm - _EXACT_NORMS) >> 3) - 1
    return _EXACT_NORMS + (bits if shift < 0 else (bits | 8) << shift)


def term_key(term: str) -> int:
    return int.from_bytes(hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class IndexBuilder:
    """Builds the arrays of an `Index` from documents."""

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
        scores = contribution(np.repeat(idf, document_counts), counts, inverse[norms[docs]])
        starts = np.concatenate([[0], np.cumsum(document_counts)]).astype(np.int64)
        return {
            "term_keys": keys[key_order],
            "term_starts": starts,
            "term_most": np.maximum.reduceat(scores, starts[:-1]) if len(scores) else np.zeros(0, np.float32),
            "term_idf": idf,
            "posting_docs": docs,
            "posting_counts": counts,
            "posting_scores": scores,
            "doc_norms": norms,
            "doc_rank": np.argsort(np.argsort(np.array(self._names, dtype=np.str_))).astype(np.int32),
            "norm_inverse": inverse,
        }


def norm_inverse(average: np.float32) -> np.ndarray:
    """1 / (k1 (1 - b + b length / average length)) for each of the 256 norms, [256] f32."""
    lengths = np.array([decode_length(norm) for norm in range(256)], dtype=np.float32)
    one = np.float32(1)
    return (one / (_K1 * ((one - _B) + _B * lengths / average))).astype(np.float32)


def contribution(weight: np.ndarray | np.float32, count: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """A term's part of document scores, [n] f32, from its weight, its counts and the inverse norms."""
    return (weight - weight / (np.float32(1) + count.astype(np.float32) * inverse)).astype(np.float32)


class Index:
    """Searches the arrays of `IndexBuilder`.

    `term_keys` [V] u64 (sorted), `term_starts` [V+1] i64 into the postings, `term_idf` and `term_most` [V] f32;
    `posting_docs` [n] i32, `posting_counts` [n] i32, `posting_scores` [n] f32; `doc_norms` [N] u8, `doc_rank` [N] i32
    (the place of the document's name among all names); `norm_inverse` [256] f32.
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
        self._most = arrays["term_most"]
        self._inverse = np.array(arrays["norm_inverse"])
        self.read_bytes = 0  # of postings, in all searches so far

    def search(self, query: str) -> np.ndarray | None:
        """The best documents for a query, best first, [<= 50] i64; None for more than `MAX_CLAUSES` distinct terms."""
        wanted = Counter(terms(query))
        if len(wanted) > MAX_CLAUSES:
            return None
        found = [posting for term, times in wanted.items() if (posting := self._posting(term, times)) is not None]
        self.read_bytes += sum(8 * len(posting.docs) for posting in found)
        if not found:
            return np.zeros(0, dtype=np.int64)
        many = max(_COMMON, len(self._norms) // _COMMON_SHARE)
        common = [posting for posting in found if len(posting.docs) > many]
        rare = [posting for posting in found if len(posting.docs) <= many]
        total = self._sum(rare or common)
        if common and rare:
            candidates = self._candidates(total, common)
            if candidates is not None:
                scores = total[candidates]
                for posting in common:
                    self._add(posting, candidates, scores)
                return self._best(candidates, scores.astype(np.float32))
            total = self._sum(found)
        single = total.astype(np.float32)
        matched = np.flatnonzero(single)
        return self._best(matched, single[matched])

    def _posting(self, term: str, times: int) -> "_Posting | None":
        key = np.uint64(term_key(term))
        position = int(self._keys.searchsorted(key))
        if position == len(self._keys) or self._keys[position] != key:
            return None
        part = slice(int(self._starts[position]), int(self._starts[position + 1]))
        weight = None if times == 1 else np.float32(times) * self._idf[position]
        return _Posting(self._docs[part], part, weight, times * float(self._most[position]))

    def _scores_of(self, posting: "_Posting", where: np.ndarray | slice) -> np.ndarray:
        if posting.weight is None:
            return self._scores[posting.part][where]
        inverse = self._inverse[self._norms[posting.docs[where]]]
        return contribution(posting.weight, self._counts[posting.part][where], inverse)

    def _sum(self, postings: "list[_Posting]") -> np.ndarray:
        """The scores of all documents, [N] f64; in double precision these sums are exact in any order."""
        docs = np.concatenate([posting.docs for posting in postings])
        scores = np.concatenate([self._scores_of(posting, slice(None)) for posting in postings])
        return np.bincount(docs, weights=scores, minlength=len(self._norms))

    def _candidates(self, partial: np.ndarray, common: "list[_Posting]") -> np.ndarray | None:
        """The documents that can be in the top after the common terms are added, [n] i64; None for all."""
        slack = 1.001 * sum(posting.most for posting in common) + 1e-3
        least = np.partition(partial, len(partial) - TOP)[len(partial) - TOP] - slack
        return np.flatnonzero(partial >= least) if least > 0 else None

    def _add(self, posting: "_Posting", candidates: np.ndarray, scores: np.ndarray) -> None:
        places = np.searchsorted(posting.docs, candidates.astype(posting.docs.dtype))
        places[places == len(posting.docs)] = 0
        hit = posting.docs[places] == candidates
        scores[hit] += self._scores_of(posting, places[hit])

    def _best(self, matched: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """The best of the matched documents, [<= 50] i64, from their scores, [n] f32."""
        if len(matched) > TOP:
            least = np.partition(scores, len(scores) - TOP)[len(scores) - TOP]
            matched, scores = matched[scores >= least], scores[scores >= least]
        return matched[np.lexsort((self._rank[matched], -scores))][:TOP]


@dataclass(frozen=True, slots=True)
class _Posting:
    """The postings of a query's term."""

    docs: np.ndarray  # the documents, ascending, [n] i32
    part: slice  # their positions in the index
    weight: np.float32 | None  # count in the query x idf; None for a count of one
    most: float  # upper bound of its contribution
