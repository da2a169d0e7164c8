"""What runs inside the workers of a vLLM server that samples with an adapter (LoRA) on top of its model.

Given to the server as `--worker-extension-cls gigpo_jax.sampling.vllm.worker.adapter.AdapterLoader`, together with
`--enable-lora`. The learner hands over one safetensors file with PEFT's names, whose pairs have their scale in B. It is
checked, copied into a folder of the server's own inside GIGPO_WEIGHTS_DIR, so that what is loaded is what was checked,
and loaded from there by `/v1/load_lora_adapter`. Every adapter gets a name of its own: vLLM keeps cached prefixes by
name, and one that is loaded in place of another is read from disk again at every step. The model below never changes:
these servers refuse to replace all weights.

As `extension.py`, this needs no jax, and says what is wrong under "error" before anything was touched.
"""

import contextlib
import json
import mmap
import os
import pathlib
import re
import shutil
import time
import urllib.parse
from typing import Any

from gigpo_jax.sampling.vllm.worker.extension import (
    HEADER_LIMIT,
    SUFFIX,
    WEIGHTS_DIR,
    Checksum,
    Refused,
    WeightLoader,
    allowed_file,
    checkpoint_shapes,
    checksum_of,
    pull,
    read_header,
)

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM 0.32 takes for --max-lora-rank
STAGED = "adapter"  # folders in GIGPO_WEIGHTS_DIR whose names begin so are the servers'
KEPT = 2  # adapters of a server on disk: a late request may ask for the one before the newest
FILES = ("adapter_config.json", "adapter_model.safetensors")
_PAIR = re.compile(r"base_model\.model\.(model\.layers\.\d+\.(?:self_attn|mlp)\.\w+_proj)\.lora_([AB])\.weight")
_PLAIN = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)


class AdapterLoader(WeightLoader):
    """Mixed into vLLM's worker class in place of `WeightLoader`."""

    _base = ""

    def gigpo_describe(self) -> dict[str, Any]:
        """What this worker serves, and the largest rank of an adapter that it takes."""
        lora, runtime = self.vllm_config.lora_config, os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "")
        rank = int(lora.max_lora_rank) if lora is not None and runtime.lower() in ("1", "true") else 0
        return super().gigpo_describe() | {"adapter_rank": rank}

    def gigpo_load(self, path: str, checksum: str, remove: bool = False) -> dict[str, Any]:
        """Refused: the model below the adapters stays as it is."""
        del path, checksum, remove
        return {"error": "this server was started for adapters and keeps its model; start it without --enable-lora"}

    def gigpo_stage(self, source: str, checksum: str, base: str, server: str, name: str) -> dict[str, Any]:
        """Checks an adapter and puts it where `/v1/load_lora_adapter` takes it from.

        Args:
          source: a file in the allowed folder, or an address under the allowed one.
          checksum: of its tensors.
          base: checksum of the model that it belongs to, see `folder_checksum`.
          server: tells this server's adapters from those of others in the same folder.
          name: of the adapter, never used before on this server.

        Returns:
          "folder", "checksum", "tensors", "bytes" and "seconds", or "error".
        """
        started = time.monotonic()
        pulled: pathlib.Path | None = None
        try:
            self._refuse_other_base(base)
            if not (_PLAIN.fullmatch(server) and _PLAIN.fullmatch(name)):
                raise Refused(f"{server!r}, {name!r}: not plain names")
            if urllib.parse.urlsplit(source).scheme in ("http", "https"):
                pulled = pull(source, suffix=f"{os.getpid()}.{time.monotonic_ns()}")
            file = pulled or allowed_file(source)
            with file.open("rb") as opened:
                data = opened.read()
            header, at = read_header(data, file.name)
            rank, targets = check_pairs(header, checkpoint_shapes(pathlib.Path(self.model_config.model)))
            if rank > self.vllm_config.lora_config.max_lora_rank:
                raise Refused(f"rank {rank}: this server takes {self.vllm_config.lora_config.max_lora_rank} at most")
            found = checksum_of(header, data, at)
            if found != checksum:
                raise Refused(f"{file.name}: checksum {found}, written was {checksum}; the file was read wrongly")
            folder = stage(data, rank, targets, server, name)
        except (Refused, OSError) as err:
            return {"error": str(err)}
        finally:
            if pulled is not None:
                pulled.unlink(missing_ok=True)
        report = {"checksum": found, "tensors": len(header), "bytes": len(data) - at}
        return report | {"folder": str(folder), "seconds": time.monotonic() - started}

    def _refuse_other_base(self, base: str) -> None:
        """The served model must be, to the last bit, the one that the adapter was trained on; looked at once."""
        self._base = self._base or folder_checksum(pathlib.Path(self.model_config.model))
        if self._base != base:
            raise Refused(f"{self.model_config.model}: not the weights of the learner's model.path; serve that folder")


def check_pairs(header: dict[str, Any], served: dict[str, list[int]]) -> tuple[int, list[str]]:
    """Checks that a file holds whole pairs for linear layers of a model, the same ones in every layer.

    Args:
      header: tensor name -> {"shape"} and more.
      served: names and shapes of the model's tensors, matrices as [out, in].

    Returns:
      The rank and the names of the linear layers.

    Raises:
      Refused: with the first tensor that is odd.
    """
    found: set[tuple[str, str]] = set()
    ranks: set[int] = set()
    for name, entry in header.items():
        match, shape = _PAIR.fullmatch(name), list(entry["shape"])
        kernel = served.get(f"{match[1]}.weight") if match else None
        if match is None or kernel is None or len(shape) != 2:
            raise Refused(f"{name}: not of a pair for the served model")
        rank, width, wanted = (*shape, kernel[1]) if match[2] == "A" else (*shape[::-1], kernel[0])
        if width != wanted or rank < 1:
            raise Refused(f"{name}: shape {shape} does not fit the served {kernel}")
        ranks.add(rank)
        found.add((match[1], match[2]))
    targets = sorted({module.rpartition(".")[2] for module, _ in found})
    modules = [name.removesuffix(".weight") for name in served if name.endswith(tuple(f".{t}.weight" for t in targets))]
    if not targets or found != {(module, part) for module in modules for part in "AB"} or len(ranks) != 1:
        raise Refused(f"{len(header)} tensors: some of the pairs are missing, or of another rank than the others")
    return ranks.pop(), targets


def stage(data: bytes, rank: int, targets: list[str], server: str, name: str) -> pathlib.Path:
    """Writes a checked adapter in PEFT's layout into the allowed folder; removes the older ones of this server.

    Returns:
      Its folder.

    Raises:
      OSError: it cannot be written.
    """
    root = pathlib.Path(os.environ[WEIGHTS_DIR]).resolve()
    folder, temporary = root / f"{STAGED}.{server}.{name}", root / f".{STAGED}.{server}.{name}.{os.getpid()}"
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets, "bias": "none"}
    older = sorted(root.glob(f"{STAGED}.{server}.*"), key=_written)
    for left in root.glob(f".{STAGED}.{server}.*"):  # by a worker that was killed; others of this push have its name
        if not left.name.startswith(f"{temporary.stem}."):
            shutil.rmtree(left, ignore_errors=True)
    try:
        temporary.mkdir(mode=0o700)
        (temporary / FILES[0]).write_text(json.dumps(config), encoding="utf-8")
        (temporary / FILES[1]).write_bytes(data)
        try:
            temporary.rename(folder)
        except OSError:  # another worker of this server was first, with the same bytes
            if not (folder / FILES[1]).is_file():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for path in [path for path in older if path != folder][: -(KEPT - 1)]:
        shutil.rmtree(path, ignore_errors=True)
    return folder


def _written(path: pathlib.Path) -> int:
    """When, in ns; long ago for what another worker of this server removes at this moment."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def folder_checksum(folder: pathlib.Path) -> str:
    """The checksum of all tensors in a model folder, whatever files they are spread over; "" if there are none."""
    places: dict[str, tuple[pathlib.Path, dict[str, Any]]] = {}
    total = Checksum()
    with contextlib.ExitStack() as stack:
        views: dict[pathlib.Path, tuple[mmap.mmap, int]] = {}
        for file in sorted(folder.glob("*" + SUFFIX)) if folder.is_dir() else ():
            opened = stack.enter_context(file.open("rb"))
            data = stack.enter_context(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
            size = int.from_bytes(data[:8], "little")
            views[file] = data, 8 + size
            entries = json.loads(data[8 : 8 + min(size, HEADER_LIMIT)])
            places |= {name: (file, entry) for name, entry in entries.items() if name != "__metadata__"}
        for name, (file, entry) in sorted(places.items()):
            data, base = views[file]
            start, end = entry["data_offsets"]
            with memoryview(data) as view, view[base + start : base + end] as part:
                total.add(name, entry["dtype"], entry["shape"], part)
    return total.hexdigest() if places else ""


def served_rank(rank: int) -> int:
    """The smallest --max-lora-rank that takes adapters of this rank."""
    return next(allowed for allowed in RANKS if allowed >= rank)
