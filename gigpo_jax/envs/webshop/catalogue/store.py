"""Prepared catalogues on disk: memory-mapped arrays and texts, with a manifest of their sources.

Files of a prepared folder, never changed once written:
  manifest.json   format, content hash, the sources with size, time stamps and hash,
                  the size of every other file
  *.npy           one array each
  *.blob          concatenated texts in UTF-8; `*.blob.npy` has their starts, [n + 1] i64
"""

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.folders import replace_folder
from gigpo_jax.envs.webshop.catalogue.sources import PREPARE, Sources

FORMAT = 2


def release_pages(arrays: Mapping[str, np.ndarray]) -> None:
    """Unmaps the pages of memory-mapped arrays from this process."""
    for array in arrays.values():
        if isinstance(array.base, np.memmap) and isinstance(array.base.base, mmap.mmap):
            # Mapped pages count as memory of the process. They stay in the page cache for all
            # workers.
            array.base.base.madvise(mmap.MADV_DONTNEED)


class Blob:
    """A list of texts in a memory-mapped file."""

    def __init__(self, path: Path) -> None:
        self._starts = np.load(path.with_name(path.name + ".npy"), mmap_mode="r")
        with open(path, "rb") as file:
            # An empty file cannot be mapped.
            size = os.fstat(file.fileno()).st_size
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""

    def __len__(self) -> int:
        return len(self._starts) - 1

    def release_pages(self) -> None:
        """Unmaps the pages from this process; they stay in the page cache."""
        if isinstance(self._data, mmap.mmap):
            self._data.madvise(mmap.MADV_DONTNEED)

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._data[int(self._starts[index]) : int(self._starts[index + 1])]


class BlobWriter:
    """Writes a `Blob`, text by text."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "wb")  # noqa: SIM115  closed by `close`
        self._starts = [0]

    def add(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        self._file.write(data)
        self._starts.append(self._starts[-1] + len(data))

    def close(self) -> None:
        self._file.close()
        starts = np.array(self._starts, dtype=np.int64)
        np.save(self._path.with_name(self._path.name + ".npy"), starts)


def hash_file(path: Path) -> str:
    """The BLAKE2 hash of a file's content, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _file_stamp(path: Path) -> list[int]:
    """Returns size, time stamps and inode of a file, which is taken as unchanged if they are."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def describe_sources(sources: Sources) -> list[dict[str, Any]]:
    """Returns the sources' entries in a manifest; reads every file."""
    entries = []
    for path in sources.paths():
        stamp = _file_stamp(path)
        entry = {"name": path.name, "hash": hash_file(path), "stat": stamp}
        # The hash would belong to neither state of the file.
        if _file_stamp(path) != stamp:
            raise InputError(
                "changed while it was read",
                key=path,
                fix=f"wait until it is written and run `{PREPARE}` again",
            )
        entries.append(entry)
    return entries


def content_hash(entries: Iterable[Mapping[str, Any]], num_products: int | None) -> str:
    """Hashes a catalogue's content, from the entries of its sources."""
    hashes = [[entry["name"], entry["hash"]] for entry in entries]
    # With the format: a new version of the package never reads the files of an old one.
    key = json.dumps([FORMAT, num_products, hashes])
    return hashlib.blake2b(key.encode(), digest_size=12).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Reads the manifest of a prepared folder; None if a file is missing or has another size."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return None
        complete = all(
            (folder / name).stat().st_size == size for name, size in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return manifest if complete else None


def matches_sources(manifest: Mapping[str, Any], sources: Sources) -> bool:
    """Whether a manifest describes these sources.

    A file is hashed only if its time stamps or inode differ and its size does not.
    """
    paths = sources.paths()
    if [entry["name"] for entry in manifest["sources"]] != [path.name for path in paths]:
        return False
    for entry, path in zip(manifest["sources"], paths, strict=True):
        stamp = _file_stamp(path)
        if stamp == entry["stat"]:
            continue
        # Another size is another content; only an equal one is worth a hash.
        size = stamp[0]
        if size != entry["stat"][0] or hash_file(path) != entry["hash"]:
            return False
    return True


def write_rows_folder(out: Path, fill: Callable[[Path], dict[str, Any]]) -> None:
    """Writes a prepared folder.

    Args:
      out: Folder to replace.
      fill: Function that writes the files into a folder and returns the manifest without "files".
    """
    with replace_folder(out, full=True) as temporary:
        manifest = fill(temporary)
        manifest["files"] = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
        # Last: a folder without a manifest is not complete.
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def load_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Memory-maps a prepared folder's arrays, except the blobs' arrays."""
    paths = [path for path in folder.glob("*.npy") if not path.name.endswith(".blob.npy")]
    # As plain arrays: indexing an np.memmap takes several times as long.
    return {path.stem: np.load(path, mmap_mode="r").view(np.ndarray) for path in paths}
