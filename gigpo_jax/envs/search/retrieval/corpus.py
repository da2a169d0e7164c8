"""Reads corpora of JSON lines, and stores passages in a memory-mapped file."""

import codecs
import gzip
import hashlib
import json
import mmap
import os
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from gigpo_jax.envs.search.retrieval.retriever import Document
from gigpo_jax.errors import InputError

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")


def corpus_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files of a corpus: a file, or the JSON lines files of a folder, by name."""
    root = Path(path)
    files = sorted(p for p in root.iterdir() if p.name.endswith(SUFFIXES)) if root.is_dir() else [root]
    if not files or not all(file.is_file() for file in files):
        raise InputError(f"--corpus {path}: no such corpus; give a file of JSON lines {{id, contents}}, or a folder")
    return files


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # type: ignore[return-value]


def read_lines(path: Path) -> Iterator[tuple[str, dict]]:
    """The JSON objects of a file, each with its place ("file:line") for messages; blank lines are skipped.

    Raises:
      InputError: a line is not UTF-8 or not a JSON object, or the file cannot be read.
    """
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                where = f"{path}:{number}"
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if not line.strip():
                    continue
                try:
                    row = json.loads(line.decode("utf-8"))
                except UnicodeDecodeError as err:
                    raise InputError(f"{where}: not UTF-8 ({err.reason}); convert the file") from err
                except (ValueError, RecursionError) as err:
                    raise InputError(f"{where}: not JSON ({err}); each line must be an object") from err
                if not isinstance(row, dict):
                    raise InputError(f"{where}: a JSON {type(row).__name__}; each line must be an object")
                yield where, row
    except (OSError, EOFError, zlib.error) as err:
        raise InputError(f"{path}: cannot be read ({err})") from err


def read_corpus(path: str | os.PathLike[str]) -> Iterator[Document]:
    """The documents of a corpus, in order; InputError for a row without an id or text."""
    for file in corpus_files(path):
        for where, row in read_lines(file):
            name, contents = row.get("id"), row.get("contents")
            if isinstance(name, bool) or not isinstance(name, (str, int)) or name == "":
                raise InputError(f"{where}: id={name!r}; every passage needs an id, a text or a whole number")
            if not isinstance(contents, str) or not contents.strip():
                raise InputError(f'{where}: the passage {name!r} has no "contents"; it has to be text')
            yield Document(str(name), contents)


class Passages:
    """Documents in the memory-mapped files of `PassageWriter`; each is decoded on access."""

    def __init__(self, folder: Path) -> None:
        self._ends = np.load(folder / "passages.npy", mmap_mode="r")
        with open(folder / "passages.blob", "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._ends) // 2

    def __getitem__(self, index: int) -> Document:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = int(self._ends[2 * index - 1]) if index else 0
        middle, end = int(self._ends[2 * index]), int(self._ends[2 * index + 1])
        return Document(self._text(start, middle), self._text(middle, end))

    def _text(self, start: int, end: int) -> str:
        return self._data[start:end].decode("utf-8", "surrogatepass")


class PassageWriter:
    """Writes `Passages`, document by document. `digest` is a hash of the ids and contents so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = open(folder / "passages.blob", "wb")  # noqa: SIM115  closed by `close`
        self._ends = array("q")
        self._size = 0
        self._seen: set[bytes] = set()
        self.digest = hashlib.blake2b(digest_size=16)

    def add(self, document: Document) -> None:
        """Appends a document; InputError if its id occurred before."""
        name = document.id.encode("utf-8", "surrogatepass")
        key = hashlib.blake2b(name, digest_size=12).digest()  # 12 bytes, however long an id
        if key in self._seen:
            raise InputError(f"corpus: the id {document.id!r} occurs twice; ids must be unique")
        self._seen.add(key)
        for data in (name, document.contents.encode("utf-8", "surrogatepass")):
            self._file.write(data)
            self._size += len(data)
            self._ends.append(self._size)
            self.digest.update(len(data).to_bytes(8, "little") + data)

    def close(self) -> None:
        self._file.close()
        np.save(self._folder / "passages.npy", np.array(self._ends, np.int64))
