"""Dense retrieval: vectors of a sentence encoder in a faiss index.

`encode_index` writes a flat index; one that is published for the same corpus, passages in the same order, serves as
well. Needs the package faiss, and onnxruntime or torch for the encoder.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.env_bridge.base import Progress
from gigpo_jax.envs.search.retrieval.corpus import Passages
from gigpo_jax.envs.search.retrieval.encoder import INSTALL, Encode, load_encoder
from gigpo_jax.envs.search.retrieval.retriever import MAX_QUERY_CHARS, Hit, optional
from gigpo_jax.errors import InputError
from gigpo_jax.files import replacing

BATCH = 1024  # passages encoded between updates of the progress bar


class DenseIndex:
    """Searches passages by inner products of vectors; a `Retriever`.

    Args:
      passages: the documents.
      vectors: a faiss index of one vector for each, in the same order.
      encode: of queries; called by one thread at a time.
    """

    together = True

    def __init__(self, passages: Passages, vectors: Any, encode: Encode) -> None:
        if vectors.ntotal != len(passages):
            raise InputError(f"--faiss: holds {vectors.ntotal} vectors, but the corpus has {len(passages)} passages")
        self._passages, self._vectors, self._encode = passages, vectors, encode
        self._lock = threading.Lock()

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        if not queries or topk < 1:
            return [[] for _ in queries]
        with self._lock:
            encoded = self._encode([query[:MAX_QUERY_CHARS] for query in queries])
        scores, places = self._vectors.search(np.ascontiguousarray(encoded, np.float32), min(topk, len(self._passages)))
        return [
            [Hit(self._passages[int(place)], float(score)) for score, place in zip(row, found) if place >= 0]
            for row, found in zip(scores, places)
        ]


def build_vectors(passages: Passages, encode: Encode, out: Path, progress: Progress) -> None:
    """Encodes all passages and writes a flat faiss index of their inner products."""
    if out.exists():
        raise InputError(f"--out {out}: exists; name another file")
    faiss = optional("faiss", install=INSTALL)
    vectors = None
    for start in range(0, len(passages), BATCH):
        texts = [passages[place].contents for place in range(start, min(start + BATCH, len(passages)))]
        encoded = np.ascontiguousarray(encode(texts), np.float32)
        vectors = vectors or faiss.IndexFlatIP(encoded.shape[1])
        vectors.add(encoded)
        progress(len(texts))
    with replacing(out) as temporary:
        faiss.write_index(vectors, str(temporary))


def open_dense(passages: Passages, vectors: str, encode: Encode) -> DenseIndex:
    """Opens a faiss index, memory-mapped if its type allows that; `encode` is of queries.

    Raises:
      InputError: faiss or the file is missing, or they do not fit together.
    """
    faiss = optional("faiss", install=INSTALL)
    if not Path(vectors).is_file():
        raise InputError(f"--faiss {vectors}: no such file; make it with python -m gigpo_jax.envs search dense")
    try:
        found = faiss.read_index(vectors, faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as err:
        raise InputError(f"--faiss {vectors}: not a faiss index ({str(err).splitlines()[0]})") from err
    width = encode(["width"]).shape[1]
    if width != found.d:
        raise InputError(f"--faiss {vectors}: vectors of {found.d} numbers, but the encoder gives {width}")
    return DenseIndex(passages, found, encode)


def encode_index(index: Path, encoder: str, out: Path, progress: Progress) -> None:
    """Encodes the passages of a BM25 index folder with the encoder of a folder; as `build_vectors`."""
    if not (index / "passages.npy").is_file():
        raise InputError(f"--index {index}: no index; make it with python -m gigpo_jax.envs search index")
    build_vectors(Passages(index), load_encoder(encoder, "passage: "), out, progress)
