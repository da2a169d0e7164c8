"""Dense retrieval behind the same protocol: vectors of a sentence encoder in a faiss index.

    python -m gigpo_jax.envs.search.retrieval.dense --index DIR --encoder MODEL --out FILE

encodes the passages of an index folder and writes a flat index of their vectors; a flat index that is published for the
same corpus, passages in the same order, serves as well. Encoders are read by encoder.py. Needs the package faiss, and
onnxruntime or torch.
"""

import argparse
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.envs.search.retrieval.corpus import Passages
from gigpo_jax.envs.search.retrieval.encoder import INSTALL, Encode, load_encoder
from gigpo_jax.envs.search.retrieval.retriever import MAX_QUERY_CHARS, Hit
from gigpo_jax.errors import InputError

BATCH = 1024  # passages that are encoded between two looks at the bar


class DenseIndex:
    """Finds passages by the inner product of vectors; a `Retriever`.

    Attributes:
      together: the queries of a request are searched in one call.
    """

    together = True

    def __init__(self, passages: Passages, vectors: Any, encode: Encode) -> None:
        """Args:
          passages: the documents.
          vectors: a faiss index of one vector for each, in the same order.
          encode: of queries; called by one thread at a time.

        Raises:
          InputError: the index is not of these passages.
        """
        if vectors.ntotal != len(passages):
            raise InputError(f"--faiss: holds {vectors.ntotal} vectors, but the corpus has {len(passages)} passages")
        self._passages, self._vectors, self._encode = passages, vectors, encode
        self._lock = threading.Lock()

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """As `Retriever.search`."""
        if not queries or topk < 1:
            return [[] for _ in queries]
        with self._lock:
            encoded = self._encode([query[:MAX_QUERY_CHARS] for query in queries])
        scores, places = self._vectors.search(np.ascontiguousarray(encoded, np.float32), min(topk, len(self._passages)))
        return [
            [Hit(self._passages[int(place)], float(score)) for score, place in zip(row, found) if place >= 0]
            for row, found in zip(scores, places)
        ]

    def close(self) -> None:
        """Leaves the index open, as `Bm25Index` does."""


def import_faiss() -> Any:
    """The faiss package.

    Raises:
      InputError: it is not installed.
    """
    try:
        import faiss
    except ImportError as err:
        raise InputError(f"faiss is not installed ({err}); {INSTALL}") from err
    return faiss


def build_vectors(passages: Passages, encode: Encode, out: Path, progress: Callable[[int], object]) -> None:
    """Encodes all passages and writes a flat faiss index of their inner products.

    Args:
      passages: what to encode.
      encode: of passages.
      out: the file to write; complete or not there.
      progress: called with the number of passages after each batch.

    Raises:
      InputError: the file is there.
    """
    if out.exists():
        raise InputError(f"--out {out}: is there already; name another file")
    faiss = import_faiss()
    vectors = None
    for start in range(0, len(passages), BATCH):
        texts = [passages[place].contents for place in range(start, min(start + BATCH, len(passages)))]
        encoded = np.ascontiguousarray(encode(texts), np.float32)
        vectors = vectors or faiss.IndexFlatIP(encoded.shape[1])
        vectors.add(encoded)
        progress(len(texts))
    temporary = out.with_name(f".{out.name}.part")
    faiss.write_index(vectors, str(temporary))
    temporary.rename(out)


def open_dense(passages: Passages, vectors: str, model: str, *, encode: Encode | None = None) -> DenseIndex:
    """Opens a faiss index, memory-mapped where its kind can be.

    Args:
      passages: the documents.
      vectors: the index file.
      model: folder of the encoder.
      encode: an encoder of one's own, in place of `model`.

    Raises:
      InputError: a package, the file or the model is missing, or they do not fit together.
    """
    faiss = import_faiss()
    if not Path(vectors).is_file():
        raise InputError(f"--faiss {vectors}: no such file; make it with python -m {__name__}")
    try:
        found = faiss.read_index(vectors, faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as err:
        raise InputError(f"--faiss {vectors}: not a faiss index ({str(err).splitlines()[0]})") from err
    encode = encode or load_encoder(model, "query: ")
    width = encode(["width"]).shape[1]
    if width != found.d:
        raise InputError(f"--faiss {vectors}: vectors of {found.d} numbers, but --encoder {model} gives {width}")
    return DenseIndex(passages, found, encode)


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    from tqdm import tqdm

    parser = argparse.ArgumentParser(
        prog="python -m gigpo_jax.envs.search.retrieval.dense", description="Encodes the passages of an index folder."
    )
    parser.add_argument("--index", type=Path, required=True, metavar="DIR", help="made by search.index")
    parser.add_argument("--encoder", required=True, metavar="MODEL", help="folder of an encoder of the e5 family")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    args = parser.parse_args(argv)
    try:
        if not (args.index / "passages.npy").is_file():
            raise InputError(
                f"--index {args.index}: no index; make it with python -m gigpo_jax.envs.search.retrieval.index"
            )
        passages, encode = Passages(args.index), load_encoder(args.encoder, "passage: ")
        with tqdm(desc="vectors", total=len(passages), unit="") as bar:
            build_vectors(passages, encode, args.out, bar.update)
    except (InputError, OSError) as err:
        sys.stderr.write(f"{err}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
