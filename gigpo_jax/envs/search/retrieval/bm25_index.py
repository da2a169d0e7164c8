"""Builds and opens a BM25 index of a corpus.

An index folder holds the passages, the score of each term in each passage and a manifest. All but
the vocabulary is memory-mapped, so several processes share one copy. The folder appears complete or
not at all.

The files equal the files of bm25s 0.3, bit for bit. The package itself is not used
(benchmarks/search_index.py, 20,000 passages, CPU times):
- gigpo-worlds plays this environment with numpy alone.
- `import bm25s` imports jax where it is installed and runs an operation, which no setting prevents.
  An environment worker would start in 0.82 s and 90 MB instead of 0.16 s and 20 MB, with 16
  threads, and its backend would take an accelerator.
- Without jax its selection of the best passages leaves the order of equal scores open: it differs
  from the corpus's in 40% of the queries, a quarter of which ask for repeated passages. Episodes
  need a fixed order.
- It would not be faster where it matters: builds take 2.3 s instead of 1.8 s, a second has 3,000 to
  3,400 searches instead of 2,700, and an open index takes 102 MB instead of 31 MB.
- Only the 25 lines of `_score_postings` and `_sum_scores` would become calls.
"""

import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.folders import replace_folder
from gigpo_jax.env_bridge.base import Progress, no_progress
from gigpo_jax.envs.search.retrieval.corpus import (
    Passages,
    PassageWriter,
    list_corpus_files,
    read_corpus,
)
from gigpo_jax.envs.search.retrieval.retriever import MAX_QUERY_CHARS, Document, Hit

FORMAT = 1
SCORES_FILE = "data.csc.index.npy"
DOCUMENTS_FILE = "indices.csc.index.npy"
STARTS_FILE = "indptr.csc.index.npy"
VOCABULARY = "vocab.index.json"
# Usual for Wikipedia passages of 100 words.
K1 = 0.9
B = 0.4
MAX_TERMS = 256  # distinct terms of a query that are scored
_TERM = re.compile(r"\w+")
# fmt: off
STOPWORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "did", "do", "does",
    "for", "from", "had", "has", "have", "he", "her", "his", "how", "in", "is", "it",
    "its", "of", "on", "or", "she", "that", "the", "their", "they", "this", "to", "was",
    "were", "what", "when", "where", "which", "who", "whom", "whose", "why", "will", "with",
))
# fmt: on


def extract_terms(text: str) -> list[str]:
    """Extracts a text's index terms: lower-case words, no stop words."""
    return [word for word in _TERM.findall(text.lower()) if word not in STOPWORDS]


class Bm25Index:
    """Searches passages by BM25; a `Retriever`.

    Attributes:
      passages: All documents of the corpus.
      digest: Hash of all documents.
      sources: Files of the corpus, as `describe_corpus` returns them.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.passages = Passages(folder)
        self.digest = str(manifest["digest"])
        self.sources = manifest["sources"]
        arrays = folder / "bm25"
        # A sparse matrix by columns: scores [n] f32, documents [n] i32, starts [V + 1] i64.
        self._scores = np.load(arrays / SCORES_FILE, mmap_mode="r")
        self._documents = np.load(arrays / DOCUMENTS_FILE, mmap_mode="r")
        self._starts = np.load(arrays / STARTS_FILE, mmap_mode="r")
        vocabulary = (arrays / VOCABULARY).read_text(encoding="utf-8")
        self._term_ids: dict[str, int] = json.loads(vocabulary)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Searches as `Retriever.search`; a hit has at least one term of its query."""
        return [self._search_query(query, topk) for query in queries]

    def _search_query(self, query: str, topk: int) -> list[Hit]:
        term_ids = self._find_term_ids(query)
        if not term_ids or topk < 1:
            return []
        scores = self._sum_scores(term_ids)
        # Every score is positive: 0 means that no term of the query occurs.
        candidates = np.flatnonzero(scores)
        values = scores[candidates]
        if len(candidates) > topk:
            # All candidates that tie with the last of the best stay: the sort decides among them,
            # so the order of equal scores is the corpus's and not the partition's.
            threshold = np.partition(values, len(values) - topk)[len(values) - topk]
            candidates = candidates[values >= threshold]
            values = values[values >= threshold]
        order = np.lexsort((candidates, -values))[:topk]
        return [Hit(self.passages[int(candidates[row])], float(values[row])) for row in order]

    def _find_term_ids(self, query: str) -> list[int]:
        """Finds the ids of a query's distinct terms, in order, without unknown terms."""
        # A word that a query repeats counts once, unlike in WebShop's Lucene.
        distinct_terms = dict.fromkeys(extract_terms(query[:MAX_QUERY_CHARS]))
        term_ids = [self._term_ids[term] for term in distinct_terms if term in self._term_ids]
        return term_ids[:MAX_TERMS]

    def _sum_scores(self, term_ids: Sequence[int]) -> np.ndarray:
        """The scores of all passages [N] f32, summed over terms."""
        scores = np.zeros(len(self.passages), np.float32)
        for term_id in term_ids:
            postings = slice(self._starts[term_id], self._starts[term_id + 1])
            # A passage stands once in the postings of a term, so += with indices loses nothing;
            # np.add.at, which allows duplicates, is slower.
            scores[self._documents[postings]] += self._scores[postings]
        return scores


class _TermCounter:
    """Collects the term counts of documents, in compact arrays."""

    def __init__(self) -> None:
        self.vocabulary: dict[str, int] = {}
        # Typed arrays, as lists of Python's numbers need several times the memory.
        self.term_ids = array("i")  # of all documents, one document after the other
        self.counts = array("i")  # how often a document has the term
        self.distinct = array("i")  # distinct terms of each document
        self.lengths = array("i")  # terms of each document

    def add(self, text: str) -> None:
        counts = Counter(extract_terms(text))
        for term, count in counts.items():
            self.term_ids.append(self.vocabulary.setdefault(term, len(self.vocabulary)))
            self.counts.append(count)
        self.distinct.append(len(counts))
        self.lengths.append(counts.total())


def build_index(
    documents: Iterable[Document],
    out: Path,
    *,
    progress: Progress = no_progress,
    sources: Sequence[Sequence[str | int]] = (),
) -> Path:
    """Builds an index folder.

    Args:
      documents: Passages; their order decides between equal scores.
      out: Folder that must not exist.
      progress: Called with 1 after every document.
      sources: Files of the corpus (`describe_corpus`), for the manifest.

    Raises:
      InputError: no documents, an id that occurs twice, or a folder that exists.
    """
    if out.exists():
        raise InputError("exists", key="--out", value=out, fix="name another folder, or remove it")
    with replace_folder(out) as temporary:
        # One pass over the corpus, which need not fit in memory: passages are written while terms
        # are counted.
        counter = _TermCounter()
        writer = PassageWriter(temporary)
        try:
            for document in documents:
                writer.add(document)
                counter.add(document.contents)
                progress(1)
        finally:
            writer.close()
        if not counter.lengths:
            raise InputError(
                "the corpus is empty", key="--corpus", fix="give JSON lines {id, contents}"
            )
        if not counter.vocabulary:
            raise InputError("no passage has an index term", key="--corpus", fix="is it text?")
        _write_arrays(temporary / "bm25", counter)
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "passages": len(counter.lengths),
            "terms": len(counter.vocabulary),
            "digest": writer.digest.hexdigest(),
            "k1": K1,
            "b": B,
            "sources": [list(source) for source in sources],
        }
        manifest_text = json.dumps(manifest, indent=1) + "\n"
        (temporary / "manifest.json").write_text(manifest_text, encoding="utf-8")
    return out


def _write_arrays(folder: Path, counter: _TermCounter) -> None:
    folder.mkdir()
    scores, documents, starts = _score_postings(counter)
    np.save(folder / SCORES_FILE, scores)
    np.save(folder / DOCUMENTS_FILE, documents)
    np.save(folder / STARTS_FILE, starts)
    (folder / VOCABULARY).write_text(json.dumps(counter.vocabulary), encoding="utf-8")


def _score_postings(counter: _TermCounter) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores each term in its documents in Lucene's form, which leaves out the factor k1 + 1.

    The order of the operations and their precision are as in bm25s, so that the arrays are equal
    bit for bit.

    Returns:
      scores: [n] f32, by term and then by document.
      documents: [n] i32, likewise.
      starts: [V + 1] i64, the first posting of each term.
    """
    term_ids = np.frombuffer(counter.term_ids, np.int32)
    counts = np.frombuffer(counter.counts, np.int32).astype(np.float32)
    lengths = np.frombuffer(counter.lengths, np.int32)
    documents = np.repeat(np.arange(len(lengths), dtype=np.int32), counter.distinct)

    frequencies = np.bincount(term_ids)
    ratios = 1 + (len(lengths) - frequencies + 0.5) / (frequencies + 0.5)
    # math.log as in bm25s: numpy's logarithm may differ from it in the last bit.
    idf = np.array([math.log(ratio) for ratio in ratios.tolist()], np.float32)
    norm = K1 * ((1 - B) + B * lengths / lengths.mean())
    scores = (idf[term_ids] * (counts / (norm[documents] + counts))).astype(np.float32)

    # Stable: documents stay in ascending order within a term.
    order = np.argsort(term_ids, kind="stable")
    starts = np.concatenate([[0], np.cumsum(frequencies)])
    return scores[order], documents[order], starts


def open_index(folder: str | Path) -> Bm25Index:
    """Opens an index folder.

    Raises:
      InputError: it is missing, outdated or damaged.
    """
    folder = Path(folder)
    fix = "make it with: gigpo envs search index --corpus FILE --out DIR"
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise InputError(
                f"of format {manifest['format']}, not {FORMAT}",
                key="index",
                value=str(folder),
                fix=fix,
            )
        index = Bm25Index(folder, manifest)
        if len(index.passages) != manifest["passages"]:
            raise ValueError(f"{len(index.passages)} passages instead of {manifest['passages']}")
    except FileNotFoundError as err:
        raise InputError(
            f"no index ({err.filename} is missing)", key="index", value=str(folder), fix=fix
        ) from err
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise InputError(f"damaged ({err})", key="index", value=str(folder), fix=fix) from err
    return index


def describe_corpus(corpus: Path) -> list[list[str | int]]:
    """Lists name, size and modification time of a corpus's files."""
    rows: list[list[str | int]] = []
    for path in list_corpus_files(corpus):
        stat = path.stat()
        rows.append([path.name, stat.st_size, stat.st_mtime_ns])
    return rows


def index_corpus(corpus: Path, out: Path, *, progress: Progress = no_progress) -> None:
    """Builds the index of a corpus in a new folder."""
    sources = describe_corpus(corpus)
    build_index(read_corpus(corpus), out, progress=progress, sources=sources)


def ensure_index(corpus: Path, *, progress: Progress = no_progress) -> Bm25Index:
    """Opens an index folder, or a corpus's index CORPUS.index, which is built on first use.

    Raises:
      InputError: no corpus, one that cannot be used, or one that changed after its index was built.
    """
    if (corpus / "manifest.json").is_file():
        return open_index(corpus)
    sources = describe_corpus(corpus)
    out = corpus.parent / f"{corpus.name}.index"
    # Folders appear complete or not at all, so one that exists can be opened.
    if not out.is_dir():
        index_corpus(corpus, out, progress=progress)
    index = open_index(out)
    # An index made from documents in memory has no sources to compare.
    if index.sources not in ([], sources):
        raise InputError(
            f"changed after {out} was built",
            key="--corpus",
            value=corpus,
            fix="remove that folder and run this again",
        )
    return index
