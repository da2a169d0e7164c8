"""BM25 with the arithmetic of Lucene 8.11, over arrays that may be memory-mapped.

Scores are sums of float32 contributions `w - w / (1 + tf / norm)`, w = (count in the query) x idf,
added in double precision and rounded to float32; ties are ordered by the documents' names. Document
lengths are Lucene's one-byte norms; the package bm25s has none and orders documents otherwise. The
contribution of a term that occurs once in the query is stored with its posting.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gigpo_jax.envs.webshop.search.index_terms import analyse_text, analyse_word
from gigpo_jax.envs.webshop.search.word_segmentation import segment_words

TOP = 50
MAX_CLAUSES = 1024  # Lucene refuses queries with more distinct terms
# Common terms, in more than 4,096 documents and in more than a fifth of all, are added only to the
# documents that can still reach the top.
_COMMON = 4096
_COMMON_SHARE = 5
_K1 = np.float32(0.9)
_B = np.float32(0.4)
_UNIT = np.float32(1)  # single precision, as in Lucene
_EXACT_NORMS = 24


def encode_length(length: int) -> int:
    """Returns the one-byte norm of a length: exact at first, then four significant bits."""
    if length < _EXACT_NORMS:
        return length
    rest = length - _EXACT_NORMS
    bits = rest.bit_length()
    if bits < 4:
        return _EXACT_NORMS + rest
    # Four significant bits: the leading one is implied, three are stored beside the shift.
    shift = bits - 4
    return _EXACT_NORMS + ((rest >> shift) & 0x07 | (shift + 1) << 3)


def decode_length(norm: int) -> int:
    """The length of a one-byte norm."""
    if norm < _EXACT_NORMS:
        return norm
    bits = (norm - _EXACT_NORMS) & 0x07
    shift = ((norm - _EXACT_NORMS) >> 3) - 1
    if shift < 0:
        return _EXACT_NORMS + bits
    return _EXACT_NORMS + ((bits | 8) << shift)


def term_key(term: str) -> int:
    """Returns the 64-bit hash of a term: numbers can be memory-mapped, texts cannot."""
    data = term.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _as_array(values: array, dtype: type[np.generic]) -> np.ndarray:
    # np.frombuffer refuses an empty buffer.
    return np.frombuffer(values, dtype=dtype) if values else np.zeros(0, dtype)


class IndexBuilder:
    """Builds the arrays of an `Index` from documents."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._word_terms: dict[str, int] = {}  # word -> id of its term; -1 for a stop word
        self._vocabulary: dict[str, int] = {}
        self._terms = array("i")
        self._docs = array("i")
        self._counts = array("i")
        self._lengths = array("q")

    def add(self, name: str, text: str) -> None:
        """Indexes the next document; names are unique."""
        self._names.append(name)
        ids: list[int] = []
        word_terms = self._word_terms
        for word in segment_words(text):
            # Words repeat: each is analysed once for the whole catalogue.
            term = word_terms.get(word)
            if term is None:
                term = self._add_word(word)
            if term >= 0:
                ids.append(term)
        counts = Counter(ids)
        self._terms.extend(counts.keys())
        self._counts.extend(counts.values())
        # Before the length is added: the number of documents so far is the index of this one.
        self._docs.extend([len(self._lengths)] * len(counts))
        self._lengths.append(len(ids))

    def _add_word(self, word: str) -> int:
        analysed = analyse_word(word)
        term = -1
        if analysed:
            term = self._vocabulary.setdefault(analysed, len(self._vocabulary))
        self._word_terms[word] = term
        return term

    def build_arrays(self) -> dict[str, np.ndarray]:
        """Returns all documents' arrays, under the names `Index` expects."""
        lengths = _as_array(self._lengths, np.int64)
        keys = np.fromiter(map(term_key, self._vocabulary), np.uint64, len(self._vocabulary))
        # With 64 bits this is not expected; but two terms with one posting would be a silent error.
        if len(np.unique(keys)) != len(keys):
            raise RuntimeError("two terms share a 64-bit key; change term_key")

        # Postings are sorted by the rank of their term's key, and by document within a term.
        key_order = np.argsort(keys)
        rank = np.empty(len(keys), dtype=np.int32)
        rank[key_order] = np.arange(len(keys), dtype=np.int32)
        posting_terms = rank[_as_array(self._terms, np.int32)]
        # Stable: documents were added in ascending order and stay so within a term, as the binary
        # search in `_add_scores` needs.
        order = np.argsort(posting_terms, kind="stable")
        docs = _as_array(self._docs, np.int32)[order]
        counts = _as_array(self._counts, np.int32)[order]
        frequencies = np.bincount(posting_terms, minlength=len(keys))
        starts = np.concatenate([[0], np.cumsum(frequencies)]).astype(np.int64)

        # Lucene counts the documents that have a term at all, here and in the average length.
        documents = int((lengths > 0).sum())
        average = np.float32(int(lengths.sum()) / documents) if documents else np.float32(1)
        # In double precision and then rounded, as Lucene does.
        idf = np.log(1 + (documents - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)
        inverse = norm_inverse(average)
        norms = np.fromiter(map(encode_length, lengths.tolist()), np.uint8, len(lengths))
        scores = term_contribution(np.repeat(idf, frequencies), counts, inverse[norms[docs]])
        largest = np.zeros(0, np.float32)
        if len(scores):
            largest = np.maximum.reduceat(scores, starts[:-1])
        names = np.array(self._names, dtype=np.str_)
        return {
            "term_keys": keys[key_order],
            "term_starts": starts,
            "term_most": largest,
            "term_idf": idf,
            "posting_docs": docs,
            "posting_counts": counts,
            "posting_scores": scores,
            "doc_norms": norms,
            # The argsort of an order is its inverse: the place of each name.
            "doc_rank": np.argsort(np.argsort(names)).astype(np.int32),
            "norm_inverse": inverse,
        }


def norm_inverse(average: np.float32) -> np.ndarray:
    """Returns the inverse length term of each norm, [256] f32.

    The term is 1 / (k1 (1 - b + b length / average length)).
    """
    lengths = np.array([decode_length(norm) for norm in range(256)], dtype=np.float32)
    inverse = _UNIT / (_K1 * ((_UNIT - _B) + _B * lengths / average))
    return inverse.astype(np.float32)


def term_contribution(
    weight: np.ndarray | np.float32, count: np.ndarray, inverse: np.ndarray
) -> np.ndarray:
    """A term's contribution to document scores, [n] f32.

    Args:
      weight: Count in the query x idf, one for all documents or [n] f32.
      count: [n] i32 count of the term in each document.
      inverse: [n] f32 inverse norm of each document.
    """
    # In this order and in float32, as Lucene does: another order changes the last bits, and ties.
    scores = weight - weight / (_UNIT + count.astype(np.float32) * inverse)
    return scores.astype(np.float32)


class Index:
    """Searches the arrays of `IndexBuilder`.

    Args:
      arrays: The arrays by name:
        `term_keys` [V] u64, sorted;
        `term_starts` [V + 1] i64, the first posting of each term;
        `term_idf`, `term_most` [V] f32, the largest contribution of each term;
        `posting_docs`, `posting_counts` [n] i32, `posting_scores` [n] f32;
        `doc_norms` [N] u8;
        `doc_rank` [N] i32, the place of the document's name among all names;
        `norm_inverse` [256] f32.

    Attributes:
      read_bytes: Bytes of postings read in all searches so far.
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
        self._largest = arrays["term_most"]
        self._inverse = np.array(arrays["norm_inverse"])
        self.read_bytes = 0

    def search(self, query: str) -> np.ndarray | None:
        """Returns a query's best documents, best first, [<= 50] i64.

        None for more than `MAX_CLAUSES` distinct terms.
        """
        counts = Counter(analyse_text(query))
        if len(counts) > MAX_CLAUSES:
            return None
        postings = []
        for term, count in counts.items():
            posting = self._find_posting(term, count)
            if posting is not None:
                postings.append(posting)
                self.read_bytes += 8 * len(posting.docs)
        # No term of the query is in the catalogue.
        if not postings:
            return np.zeros(0, dtype=np.int64)

        threshold = max(_COMMON, len(self._norms) // _COMMON_SHARE)
        common = [posting for posting in postings if len(posting.docs) > threshold]
        rare = [posting for posting in postings if len(posting.docs) <= threshold]
        # Documents with rare terms usually fill the top. A bound on what common terms add proves
        # it; if it does not, all documents are scored.
        if common and rare:
            rare_scores = self._sum_scores(rare)
            candidates = self._find_candidates(rare_scores, common)
            if candidates is not None:
                scores = rare_scores[candidates]
                for posting in common:
                    self._add_scores(posting, candidates, scores)
                return self._select_best(candidates, scores.astype(np.float32))
        all_scores = self._sum_scores(postings).astype(np.float32)
        # Every contribution is positive: a score of 0 means that no term occurs.
        matched = np.flatnonzero(all_scores)
        return self._select_best(matched, all_scores[matched])

    def _find_posting(self, term: str, count: int) -> "_Posting | None":
        key = np.uint64(term_key(term))
        position = int(self._keys.searchsorted(key))
        if position == len(self._keys) or self._keys[position] != key:
            return None
        span = slice(int(self._starts[position]), int(self._starts[position + 1]))
        # The contribution is linear in the weight, so the bound is a multiple of the stored one.
        weight = None if count == 1 else np.float32(count) * self._idf[position]
        return _Posting(self._docs[span], span, weight, count * float(self._largest[position]))

    def _posting_scores(self, posting: "_Posting", rows: np.ndarray | slice) -> np.ndarray:
        """The contributions of some rows of a posting, [n] f32."""
        if posting.weight is None:
            return self._scores[posting.span][rows]
        inverse = self._inverse[self._norms[posting.docs[rows]]]
        return term_contribution(posting.weight, self._counts[posting.span][rows], inverse)

    def _sum_scores(self, postings: "list[_Posting]") -> np.ndarray:
        """The scores of all documents, [N] f64."""
        # In double precision these sums of float32 are exact in any order, as Lucene's are.
        docs = np.concatenate([posting.docs for posting in postings])
        scores = np.concatenate(
            [self._posting_scores(posting, slice(None)) for posting in postings]
        )
        return np.bincount(docs, weights=scores, minlength=len(self._norms))

    def _find_candidates(
        self, rare_scores: np.ndarray, common: "list[_Posting]"
    ) -> np.ndarray | None:
        """Finds documents that can reach the top with common terms.

        Returns:
          [n] i64; None if all documents can.
        """
        # A little more than the sum of the bounds: rounding must not lose a document.
        slack = 1.001 * sum(posting.largest for posting in common) + 1e-3
        lowest = np.partition(rare_scores, len(rare_scores) - TOP)[len(rare_scores) - TOP] - slack
        return np.flatnonzero(rare_scores >= lowest) if lowest > 0 else None

    def _add_scores(self, posting: "_Posting", candidates: np.ndarray, scores: np.ndarray) -> None:
        """Adds a posting's contributions to candidates' scores, in place."""
        # In the postings' own dtype: for another one numpy would convert all of them first.
        rows = np.searchsorted(posting.docs, candidates.astype(posting.docs.dtype))
        # Behind the last posting; the comparison below rejects it.
        rows[rows == len(posting.docs)] = 0
        hits = posting.docs[rows] == candidates
        scores[hits] += self._posting_scores(posting, rows[hits])

    def _select_best(self, matched: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Selects the best of n matched documents by scores [n] f32; returns [<= 50] i64."""
        if len(matched) > TOP:
            # All that tie with the last of the top stay: their names decide, in the sort below.
            lowest = np.partition(scores, len(scores) - TOP)[len(scores) - TOP]
            matched = matched[scores >= lowest]
            scores = scores[scores >= lowest]
        # The last key of lexsort is the first criterion: scores, then names.
        return matched[np.lexsort((self._rank[matched], -scores))][:TOP]


@dataclass(frozen=True, slots=True)
class _Posting:
    """The postings of a query's term."""

    docs: np.ndarray  # the documents, ascending, [n] i32
    span: slice  # their positions in the index
    weight: np.float32 | None  # count in the query x idf; None for a count of one
    largest: float  # upper bound of its contribution
