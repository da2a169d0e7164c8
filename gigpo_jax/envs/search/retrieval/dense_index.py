"""Dense retrieval: vectors of a sentence encoder in a faiss index.

`encode_index` writes a flat index. A published index of the same corpus, passages in the same
order, works as well. Needs the package faiss, and onnxruntime or torch for the encoder.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import replace_file
from gigpo_jax.core.optional import optional_imports
from gigpo_jax.env_bridge.base import Progress
from gigpo_jax.envs.search.retrieval.corpus import Passages
from gigpo_jax.envs.search.retrieval.encoder import Encode, load_encoder
from gigpo_jax.envs.search.retrieval.retriever import MAX_QUERY_CHARS, Hit

BATCH = 1024  # passages encoded between updates of the progress bar


class DenseIndex:
    """Searches passages by inner products of vectors; a `Retriever`.

    Args:
      passages: Documents of the corpus.
      vectors: faiss index with one vector for each document, in the same order.
      encode: Encoder of queries; called by one thread at a time.
    """

    # All queries of a request in one call: the encoder is faster on a batch.
    together = True

    def __init__(self, passages: Passages, vectors: Any, encode: Encode) -> None:
        if vectors.ntotal != len(passages):
            raise InputError(
                (f"holds {vectors.ntotal} vectors, but the corpus has {len(passages)} passages"),
                key="--faiss",
            )
        self._passages = passages
        self._vectors = vectors
        self._encode = encode
        self._lock = threading.Lock()

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        if not queries or topk < 1:
            return [[] for _ in queries]
        # The encoder alone: a search in a faiss index may run in several threads.
        with self._lock:
            encoded = self._encode([query[:MAX_QUERY_CHARS] for query in queries])
        score_rows, index_rows = self._vectors.search(
            np.ascontiguousarray(encoded, np.float32), min(topk, len(self._passages))
        )
        results = []
        for scores, indices in zip(score_rows, index_rows, strict=True):
            # faiss pads a row that has fewer results with the index -1.
            hits = [
                Hit(self._passages[int(index)], float(score))
                for score, index in zip(scores, indices, strict=True)
                if index >= 0
            ]
            results.append(hits)
        return results


def build_vectors(passages: Passages, encode: Encode, out: Path, progress: Progress) -> None:
    """Encodes all passages into a flat faiss inner-product index."""
    if out.exists():
        raise InputError("exists", key="--out", value=out, fix="name another file")
    with optional_imports("search-dense"):
        import faiss
    vectors: Any = None
    for start in range(0, len(passages), BATCH):
        rows = range(start, min(start + BATCH, len(passages)))
        encoded = np.ascontiguousarray(encode([passages[row].contents for row in rows]), np.float32)
        # The encoder tells its width with its first vectors.
        if vectors is None:
            vectors = faiss.IndexFlatIP(encoded.shape[1])
        vectors.add(encoded)
        progress(len(rows))
    with replace_file(out) as temporary:
        faiss.write_index(vectors, str(temporary))


def open_dense(passages: Passages, vectors: str, encode: Encode) -> DenseIndex:
    """Opens a faiss index, memory-mapped if its type allows that.

    Args:
      passages: Documents of the corpus.
      vectors: Path of the faiss index.
      encode: Encoder of queries.

    Raises:
      InputError: faiss or the file is missing, or they do not fit together.
    """
    with optional_imports("search-dense"):
        import faiss
    if not Path(vectors).is_file():
        raise InputError(
            "no such file",
            key="--faiss",
            value=vectors,
            fix="make it with gigpo envs search dense",
        )
    try:
        # Mapped, not read: servers of one machine share a flat index through the page cache.
        index = faiss.read_index(vectors, faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as err:
        reason = str(err).splitlines()[0]
        raise InputError(f"not a faiss index ({reason})", key="--faiss", value=vectors) from err
    # One text at the start shows an encoder of another model, before a server is up.
    width = encode(["width"]).shape[1]
    if width != index.d:
        raise InputError(
            f"vectors of {index.d} numbers, but the encoder gives {width}",
            key="--faiss",
            value=vectors,
        )
    return DenseIndex(passages, index, encode)


def encode_index(index: Path, encoder: str, out: Path, progress: Progress) -> None:
    """Encodes the passages of a BM25 index folder, as `build_vectors`."""
    if not (index / "passages.npy").is_file():
        raise InputError(
            "no index",
            key="--index",
            value=index,
            fix="make it with gigpo envs search index",
        )
    build_vectors(Passages(index), load_encoder(encoder, "passage: "), out, progress)
