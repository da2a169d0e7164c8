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
from typing import IO, Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.search.retrieval.retriever import Document

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")


def list_corpus_files(path: str | os.PathLike[str]) -> list[Path]:
    """Lists a corpus's files: one file, or the JSON lines files of a folder by name."""
    root = Path(path)
    files = [root]
    if root.is_dir():
        files = sorted(file for file in root.iterdir() if file.name.endswith(SUFFIXES))
    if not files or not all(file.is_file() for file in files):
        raise InputError(
            "no such corpus",
            key="--corpus",
            value=path,
            fix="give a file of JSON lines {id, contents}, or a folder",
        )
    return files


def _open_binary(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return open(path, "rb")


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields a file's JSON objects, each with its place "file:line"; blank lines are skipped.

    Raises:
      InputError: a line is not UTF-8 or not a JSON object, or the file cannot be read.
    """
    try:
        with _open_binary(path) as file:
            for number, line in enumerate(file, 1):
                place = f"{path}:{number}"
                # Only at the start of a file; elsewhere these bytes belong to the text.
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line.strip():
                    yield place, _parse_object(line, place)
    # A gzip file that was cut raises EOFError, and a damaged one zlib.error.
    except (OSError, EOFError, zlib.error) as err:
        raise InputError(f"cannot be read ({err})", key=path) from err


def _parse_object(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as err:
        raise InputError(f"not UTF-8 ({err.reason})", key=place, fix="convert the file") from err
    except (ValueError, RecursionError) as err:
        raise InputError(
            f"not JSON ({err})", key=place, fix="write an object in each line"
        ) from err
    if not isinstance(row, dict):
        raise InputError(
            f"a JSON {type(row).__name__}", key=place, fix="write an object in each line"
        )
    return row


def read_corpus(path: str | os.PathLike[str]) -> Iterator[Document]:
    """Yields the documents of a corpus in order.

    Raises:
      InputError: a row has no id or no text.
    """
    for file in list_corpus_files(path):
        for place, row in read_lines(file):
            name = row.get("id")
            # bool is a kind of int in Python, and true is no id.
            if isinstance(name, bool) or not isinstance(name, (str, int)) or name == "":
                raise InputError(
                    f"id={name!r}",
                    key=place,
                    fix="give each passage an id, a text or a whole number",
                )
            contents = row.get("contents")
            if not isinstance(contents, str) or not contents.strip():
                raise InputError(
                    f'the passage {name!r} has no "contents"', key=place, fix="write a text"
                )
            yield Document(str(name), contents)


class Passages:
    """Documents in the memory-mapped files of `PassageWriter`, decoded on access."""

    def __init__(self, folder: Path) -> None:
        # Byte offsets [2 N] i64: the ends of id and contents of each document in turn.
        self._ends = np.load(folder / "passages.npy", mmap_mode="r")
        with open(folder / "passages.blob", "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._ends) // 2

    def __getitem__(self, index: int) -> Document:
        if not 0 <= index < len(self):
            raise IndexError(index)
        # A document starts where the one before it ends.
        start = int(self._ends[2 * index - 1]) if index else 0
        middle = int(self._ends[2 * index])
        end = int(self._ends[2 * index + 1])
        return Document(self._decode(start, middle), self._decode(middle, end))

    def _decode(self, start: int, end: int) -> str:
        return self._data[start:end].decode("utf-8", "surrogatepass")


class PassageWriter:
    """Writes `Passages`, document by document.

    Attributes:
      digest: Hash of all ids and contents written so far.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = open(folder / "passages.blob", "wb")  # noqa: SIM115  closed by `close`
        self._ends = array("q")
        self._size = 0
        self._id_hashes: set[bytes] = set()
        self.digest = hashlib.blake2b(digest_size=16)

    def add(self, document: Document) -> None:
        """Appends a document; InputError if its id occurred before."""
        name = document.id.encode("utf-8", "surrogatepass")
        # 12 bytes however long an id: 21 million ids must fit in memory, without collisions.
        id_hash = hashlib.blake2b(name, digest_size=12).digest()
        if id_hash in self._id_hashes:
            raise InputError(
                f"the id {document.id!r} occurs twice", key="corpus", fix="give each its own"
            )
        self._id_hashes.add(id_hash)
        for data in (name, document.contents.encode("utf-8", "surrogatepass")):
            self._file.write(data)
            self._size += len(data)
            self._ends.append(self._size)
            # The length keeps "ab" + "c" apart from "a" + "bc".
            self.digest.update(len(data).to_bytes(8, "little") + data)

    def close(self) -> None:
        self._file.close()
        np.save(self._folder / "passages.npy", np.array(self._ends, np.int64))
