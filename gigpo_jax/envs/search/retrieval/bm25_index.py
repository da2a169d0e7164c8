"""Builds and opens a BM25 index of a corpus.

An index folder holds the passages, the score of each term in each passage and a manifest. All but the vocabulary is
memory-mapped, so several processes share one copy. It appears whole or not at all. The files are those of bm25s 0.3.
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

from gigpo_jax.env_bridge.base import Progress, no_progress
from gigpo_jax.envs.search.retrieval.corpus import Passages, PassageWriter, corpus_files, read_corpus
from gigpo_jax.envs.search.retrieval.retriever import MAX_QUERY_CHARS, Document, Hit
from gigpo_jax.errors import InputError
from gigpo_jax.files import replacing_folder

FORMAT = 1
ARRAYS = ("data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy")  # scores, documents, starts of terms
VOCABULARY = "vocab.index.json"
K1, B = 0.9, 0.4  # usual for Wikipedia passages of 100 words
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


def terms(text: str) -> list[str]:
    """The index terms of a text: lower-case words without stop words."""
    return [word for word in _TERM.findall(text.lower()) if word not in STOPWORDS]


class Bm25Index:
    """Searches passages by BM25; a `Retriever`. `digest` is a hash of all documents, `sources` as of `describe`."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.passages = Passages(folder)
        self.digest, self.sources = str(manifest["digest"]), manifest["sources"]
        files = (folder / "bm25" / name for name in ARRAYS)
        self._scores, self._documents, self._starts = (np.load(file, mmap_mode="r") for file in files)
        self._ids: dict[str, int] = json.loads((folder / "bm25" / VOCABULARY).read_text(encoding="utf-8"))

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """As `Retriever.search`; passages without a term of the query are not returned."""
        return [self._one(query, topk) for query in queries]

    def _one(self, query: str, topk: int) -> list[Hit]:
        known = (self._ids.get(term) for term in terms(query[:MAX_QUERY_CHARS]))
        ids = list(dict.fromkeys(number for number in known if number is not None))[:MAX_TERMS]
        if not ids or topk < 1:
            return []
        scores = np.zeros(len(self.passages), np.float32)
        for number in ids:
            part = slice(self._starts[number], self._starts[number + 1])
            scores[self._documents[part]] += self._scores[part]
        found = np.flatnonzero(scores)
        values = scores[found]
        if len(found) > topk:  # keep all that tie with the last of the best; the order below decides
            worst = np.partition(values, len(values) - topk)[len(values) - topk]
            found, values = found[values >= worst], values[values >= worst]
        order = np.lexsort((found, -values))[:topk]
        return [Hit(self.passages[int(found[place])], float(values[place])) for place in order]


def build_index(
    documents: Iterable[Document],
    out: Path,
    *,
    progress: Progress = no_progress,
    sources: Sequence[Sequence[str | int]] = (),
) -> Path:
    """Builds an index folder.

    Args:
      documents: their order decides between equal scores.
      out: must not exist.
      progress: called with 1 after every document.
      sources: what the documents were read from (`describe`); goes into the manifest.

    Raises:
      InputError: no documents, an id that occurs twice, or a folder that exists.
    """
    if out.exists():
        raise InputError(f"--out {out}: exists; name another folder, or remove it")
    with replacing_folder(out) as temporary:
        writer = PassageWriter(temporary)
        vocabulary: dict[str, int] = {}
        numbers, counts, distinct, lengths = (array("i") for _ in range(4))
        try:
            for document in documents:
                writer.add(document)
                words = Counter(terms(document.contents))
                numbers.extend(vocabulary.setdefault(word, len(vocabulary)) for word in words)
                counts.extend(words.values())
                distinct.append(len(words))
                lengths.append(words.total())
                progress(1)
        finally:
            writer.close()
        if not lengths:
            raise InputError("--corpus: the corpus is empty; give JSON lines {id, contents}")
        if not vocabulary:
            raise InputError("--corpus: no passage has an index term; is it text?")
        (temporary / "bm25").mkdir()
        for name, values in zip(ARRAYS, _postings(numbers, counts, distinct, lengths), strict=True):
            np.save(temporary / "bm25" / name, values)
        (temporary / "bm25" / VOCABULARY).write_text(json.dumps(vocabulary), encoding="utf-8")
        manifest: dict[str, Any] = {"format": FORMAT, "passages": len(lengths), "terms": len(vocabulary)}
        manifest |= {"digest": writer.digest.hexdigest(), "k1": K1, "b": B}
        manifest["sources"] = [list(source) for source in sources]
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return out


def _postings(numbers: array, counts: array, distinct: array, lengths: array) -> tuple[np.ndarray, ...]:
    """The score of each term in each document that has it, in Lucene's form: the factor k1 + 1 is left out.

    Args:
      numbers, counts: [n] i32 the terms of the documents, one document after the other, and how often each occurs.
      distinct, lengths: [N] i32 distinct terms and length of each document.

    Returns:
      Scores [n] f32 and documents [n] i32, by term and then by document, and where each term begins [V + 1] i64.
    """
    terms_, often = np.frombuffer(numbers, np.int32), np.frombuffer(counts, np.int32).astype(np.float32)
    documents = np.repeat(np.arange(len(distinct), dtype=np.int32), distinct)
    having = np.bincount(terms_)
    absent = len(distinct) - having
    idf = np.array([math.log(ratio) for ratio in (1 + (absent + 0.5) / (having + 0.5)).tolist()], np.float32)
    length = np.frombuffer(lengths, np.int32)
    norm = K1 * ((1 - B) + B * length / length.mean())
    scores = (idf[terms_] * (often / (norm[documents] + often))).astype(np.float32)
    order = np.argsort(terms_, kind="stable")
    return scores[order], documents[order], np.concatenate([[0], np.cumsum(having)])


def open_index(folder: str | Path) -> Bm25Index:
    """Opens an index folder; InputError for no index, one of another version, or a damaged one."""
    folder = Path(folder)
    make = "make it with: python -m gigpo_jax.envs search index --corpus FILE --out DIR"
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise InputError(f"index={folder}: of format {manifest['format']}, not {FORMAT}; {make}")
        index = Bm25Index(folder, manifest)
        if len(index.passages) != manifest["passages"]:
            raise ValueError(f"{len(index.passages)} passages instead of {manifest['passages']}")
    except FileNotFoundError as err:
        raise InputError(f"index={folder}: no index ({err.filename} is missing); {make}") from err
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise InputError(f"index={folder}: damaged ({err}); {make}") from err
    return index


def describe(corpus: Path) -> list[list[str | int]]:
    """Name, size and time of change of each file of a corpus."""
    found = [(path.name, path.stat()) for path in corpus_files(corpus)]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in found]


def index_corpus(corpus: Path, out: Path, *, progress: Progress = no_progress) -> None:
    sources = describe(corpus)
    build_index(read_corpus(corpus), out, progress=progress, sources=sources)


def ensure_index(corpus: Path, *, progress: Progress = no_progress) -> Bm25Index:
    """Opens an index folder, or the index of a corpus: CORPUS.index beside it, built if it does not exist.

    Raises:
      InputError: no corpus, one that cannot be used, or one that changed after its index was built.
    """
    if (corpus / "manifest.json").is_file():
        return open_index(corpus)
    sources = describe(corpus)
    out = corpus.parent / f"{corpus.name}.index"
    if not out.is_dir():
        index_corpus(corpus, out, progress=progress)
    index = open_index(out)
    if index.sources not in ([], sources):
        raise InputError(f"--corpus {corpus}: changed after {out} was built; remove that folder and run this again")
    return index
