"""Prepared catalogues on disk: memory-mapped arrays and texts, with a manifest of their sources.

Files of a prepared folder, never changed once written:
  manifest.json   format, content hash, the sources with size, time stamps and hash, the size of every other file
  *.npy           one array each
  *.blob          concatenated texts in UTF-8; `*.blob.npy` has their starts, [n+1] i64
"""

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gigpo_jax.envs.webshop.catalogue.sources import PREPARE, Sources
from gigpo_jax.errors import InputError
from gigpo_jax.files import replacing_folder

FORMAT = 2


def release_pages(arrays: Mapping[str, np.ndarray]) -> None:
    for array in arrays.values():
        if isinstance(array.base, np.memmap) and isinstance(array.base.base, mmap.mmap):
            array.base.base.madvise(mmap.MADV_DONTNEED)


class Blob:
    """A list of texts in a memory-mapped file."""

    def __init__(self, path: Path) -> None:
        self._starts = np.load(path.with_name(path.name + ".npy"), mmap_mode="r")
        with open(path, "rb") as file:
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
        np.save(self._path.with_name(self._path.name + ".npy"), np.array(self._starts, dtype=np.int64))


def file_hash(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _stat(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def describe(sources: Sources) -> list[dict[str, Any]]:
    """The entries of the sources in a manifest; reads every file."""
    out = []
    for path in sources.paths():
        before = _stat(path)
        entry = {"name": path.name, "hash": file_hash(path), "stat": before}
        if _stat(path) != before:
            raise InputError(f"{path}: changed while it was read; wait until it is written and run `{PREPARE}` again")
        out.append(entry)
    return out


def content_hash(described: Iterable[Mapping[str, Any]], num_products: int | None) -> str:
    key = json.dumps([FORMAT, num_products, [[entry["name"], entry["hash"]] for entry in described]])
    return hashlib.blake2b(key.encode(), digest_size=12).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a complete prepared folder; None if a file is missing or has another size."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return None
        complete = all((folder / name).stat().st_size == size for name, size in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return manifest if complete else None


def fits(manifest: Mapping[str, Any], sources: Sources) -> bool:
    """Whether a manifest describes these sources. A file is hashed only if its size, time stamps or inode differ."""
    paths = sources.paths()
    if [entry["name"] for entry in manifest["sources"]] != [path.name for path in paths]:
        return False
    for entry, path in zip(manifest["sources"], paths):
        now = _stat(path)
        if now != entry["stat"] and (now[0] != entry["stat"][0] or file_hash(path) != entry["hash"]):
            return False
    return True


def write_folder(out: Path, fill: Callable[[Path], dict[str, Any]]) -> None:
    """Writes a prepared folder; `fill` writes its files into a folder, and returns the manifest without "files"."""
    with replacing_folder(out, full=True) as temporary:
        manifest = fill(temporary)
        manifest["files"] = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def load_arrays(folder: Path) -> dict[str, np.ndarray]:
    paths = [path for path in folder.glob("*.npy") if not path.name.endswith(".blob.npy")]
    return {path.stem: np.load(path, mmap_mode="r").view(np.ndarray) for path in paths}
