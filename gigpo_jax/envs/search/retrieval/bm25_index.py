"""Builds and opens a BM25 index of a corpus.

An index folder holds the passages, the arrays of the bm25s package and a manifest. All but the vocabulary is
memory-mapped, so several processes share one copy. It appears whole or not at all.
"""

import json
import logging
import re
import sys
import threading
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.env_bridge.base import Progress, no_progress
from gigpo_jax.envs.search.retrieval.corpus import Passages, PassageWriter, corpus_files, read_corpus
from gigpo_jax.envs.search.retrieval.retriever import INSTALL, MAX_QUERY_CHARS, Document, Hit
from gigpo_jax.errors import InputError
from gigpo_jax.files import replacing_folder

FORMAT = 1
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
_IMPORT = threading.Lock()


def terms(text: str) -> list[str]:
    """The index terms of a text: lower-case words without stop words."""
    return [word for word in _TERM.findall(text.lower()) if word not in STOPWORDS]


def import_bm25s() -> Any:
    """The bm25s package, imported without jax, which it would start for a sort that is not used here."""
    with _IMPORT:
        if "bm25s" in sys.modules:
            return sys.modules["bm25s"]
        before = {name: sys.modules[name] for name in ("jax", "jax.lax") if name in sys.modules}
        for name in ("jax", "jax.lax"):
            sys.modules[name] = None  # type: ignore[assignment]  # not to be imported
        try:
            import bm25s
        except ImportError as err:
            raise InputError(f"bm25s is not installed ({err}); {INSTALL}") from err
        finally:
            for name in ("jax", "jax.lax"):
                sys.modules.pop(name, None)
            for name, module in before.items():
                sys.modules[name] = module
        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs every index that it builds or opens
        return bm25s


class Bm25Index:
    """Searches passages by BM25; a `Retriever`. `digest` is a hash of all documents, `sources` as of `describe`."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.passages = Passages(folder)
        self.digest, self.sources = str(manifest["digest"]), manifest["sources"]
        self._bm25 = import_bm25s().BM25.load(folder / "bm25", mmap=True, show_progress=False)
        self._ids: dict[str, int] = self._bm25.vocab_dict

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """As `Retriever.search`; passages without a term of the query are not returned."""
        return [self._one(query, topk) for query in queries]

    def _one(self, query: str, topk: int) -> list[Hit]:
        known = (self._ids.get(term) for term in terms(query[:MAX_QUERY_CHARS]))
        ids = list(dict.fromkeys(number for number in known if number is not None))[:MAX_TERMS]
        if not ids or topk < 1:
            return []
        scores = self._bm25.get_scores_from_ids(ids)
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
      progress: called with 1 after every document; for a large corpus bm25s shows its own bars after that.
      sources: what the documents were read from (`describe`); goes into the manifest.

    Raises:
      InputError: no documents, an id that occurs twice, or a folder that exists.
    """
    if out.exists():
        raise InputError(f"--out {out}: exists; name another folder, or remove it")
    bm25s = import_bm25s()
    with replacing_folder(out) as temporary:
        writer = PassageWriter(temporary)
        vocabulary: dict[str, int] = {}
        rows: list[array] = []
        try:
            for document in documents:
                writer.add(document)
                words = terms(document.contents)
                rows.append(array("i", [vocabulary.setdefault(word, len(vocabulary)) for word in words]))
                progress(1)
        finally:
            writer.close()
        if not rows:
            raise InputError("--corpus: the corpus is empty; give JSON lines {id, contents}")
        if not vocabulary:
            raise InputError("--corpus: no passage has an index term; is it text?")
        model = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
        # No empty term: bm25s would add one for queries of unknown words, which have no hits here.
        model.index(
            bm25s.tokenization.Tokenized(rows, vocabulary), create_empty_token=False, show_progress=len(rows) > 100_000
        )
        model.save(temporary / "bm25", show_progress=False)
        manifest: dict[str, Any] = {"format": FORMAT, "passages": len(rows), "terms": len(vocabulary)}
        manifest |= {"digest": writer.digest.hexdigest(), "k1": K1, "b": B, "bm25s": bm25s.__version__}
        manifest["sources"] = [list(source) for source in sources]
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return out


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
