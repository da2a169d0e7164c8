"""What runs inside the workers of a vLLM server: takes new weights from a file, and says what the server is.

Given to the server as `--worker-extension-cls gigpo_jax.sampling.vllm.worker.extension.WeightLoader`; its methods are
reached through `POST /collective_rpc`. Runs in the server's own environment: nothing here needs jax, and torch and vllm
are imported where they are used. Every method returns a dict of JSON values; what is wrong with a file comes back under
"error", before the model was touched, since an exception in the middle of a reload leaves a server of no use.  Two
environment variables of the server say what it may read: GIGPO_WEIGHTS_DIR, the one folder that files are taken from,
and GIGPO_WEIGHTS_URL, the address (up to and including a last "/") that they may be pulled from into that folder.
"""

import hashlib
import json
import math
import mmap
import os
import pathlib
import shutil
import time
import urllib.parse
import urllib.request
import zlib
from collections.abc import Iterator
from typing import Any

WEIGHTS_DIR = "GIGPO_WEIGHTS_DIR"
WEIGHTS_URL = "GIGPO_WEIGHTS_URL"
SUFFIX = ".safetensors"
HEADER_LIMIT = 100_000_000
PULL_LIMIT_S = 600.0
ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
# What must be the same in the config.json of server and learner.
ARCHITECTURE = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
    "rms_norm_eps",
    "rope_theta",
)


class Refused(ValueError):
    """A file or path that is not taken; its text says why."""


class WeightLoader:
    """Mixed into vLLM's worker class, which gives it `model_runner`, `model_config` and `vllm_config`."""

    model_runner: Any
    model_config: Any
    vllm_config: Any

    def gigpo_describe(self) -> dict[str, Any]:
        """What this worker serves: model, tokenizer, and the settings that a learner must know of."""
        config, cache = self.vllm_config, self.vllm_config.cache_config
        scheduler = config.scheduler_config
        return {
            "architecture": architecture(_model_json(self.model_config)),
            "tokenizer": tokenizer_fingerprint(_tokenizer_json(self.model_config)),
            "dtype": str(self.model_config.dtype).removeprefix("torch."),
            "device": str(config.device_config.device_type),
            "logprobs_mode": str(getattr(self.model_config.logprobs_mode, "value", self.model_config.logprobs_mode)),
            "max_model_len": int(self.model_config.max_model_len),
            "prefix_caching": bool(cache.enable_prefix_caching),
            "chunked_prefill": bool(
                getattr(scheduler, "enable_chunked_prefill", getattr(scheduler, "chunked_prefill_enabled", False))
            ),
            "weights_dir": os.environ.get(WEIGHTS_DIR, ""),
            "weights_url": os.environ.get(WEIGHTS_URL, ""),
        }

    def gigpo_load(self, path: str, checksum: str, remove: bool = False) -> dict[str, Any]:
        """Takes over all weights of a file.

        Args:
          path: a safetensors file in the allowed folder, with Hugging Face names.
          checksum: of its tensors, as `checksum_of` gives it.
          remove: delete the file afterwards.

        Returns:
          "checksum" of what was loaded, "tensors", "bytes" and "seconds", or "error".
        """
        started = time.monotonic()
        try:
            file = allowed_file(path)
            with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as data:
                header, base = read_header(data, file.name)
                self._refuse_other_tensors(header)
                found = checksum_of(header, data, base)
                if found != checksum:
                    raise Refused(f"{file.name}: checksum {found}, written was {checksum}; the file was read wrongly")
                self._load(header, data, base)
                size = data.size() - base
        except (Refused, OSError) as err:
            return {"error": str(err)}
        if remove:
            file.unlink(missing_ok=True)
        return {"checksum": found, "tensors": len(header), "bytes": size, "seconds": time.monotonic() - started}

    def gigpo_pull(self, url: str, checksum: str) -> dict[str, Any]:
        """As `gigpo_load`, from a file that is fetched from the allowed address first."""
        try:
            path = pull(url, suffix=f"{os.getpid()}.{time.monotonic_ns()}")
        except (Refused, OSError) as err:
            return {"error": str(err)}
        try:
            return self.gigpo_load(str(path), checksum)
        finally:
            path.unlink(missing_ok=True)

    def _refuse_other_tensors(self, header: dict[str, Any]) -> None:
        """The file must hold the very tensors that the server started from."""
        expected = checkpoint_shapes(pathlib.Path(self.model_config.model))
        if not expected:
            return
        if architecture(_model_json(self.model_config))["tie_word_embeddings"]:
            expected.pop("lm_head.weight", None)
        given = {name: list(entry["shape"]) for name, entry in header.items()}
        if given != expected:
            odd = sorted(n for n in expected.keys() | given.keys() if expected.get(n) != given.get(n))
            raise Refused(
                f"{len(odd)} tensors are not those of the served model, such as {odd[0]}: shape {given.get(odd[0])}, "
                f"served is {expected.get(odd[0])}"
            )

    def _load(self, header: dict[str, Any], data: mmap.mmap, base: int) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        with set_current_vllm_config(self.vllm_config):
            self.model_runner.reload_weights(weights_iterator=_tensors(header, data, base))
            # On a CPU the output head keeps a packed copy of its weights, which the reload of a tied head skips.
            for module in self.model_runner.get_model().modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)


def allowed_file(path: str) -> pathlib.Path:
    """Resolves a path and refuses everything but a safetensors file in the allowed folder.

    Raises:
      Refused: it is elsewhere, of another kind or not there, or no folder is allowed.
    """
    folder = os.environ.get(WEIGHTS_DIR, "")
    if not folder:
        raise Refused(f"this server takes no weights from files: it was started without {WEIGHTS_DIR}")
    root, file = pathlib.Path(folder).resolve(), pathlib.Path(path).resolve()
    if not file.is_relative_to(root):
        raise Refused(f"{path}: not in the folder that this server takes weights from, {folder}")
    if file.suffix != SUFFIX:
        raise Refused(f"{path}: not a {SUFFIX} file")
    if not file.is_file():
        raise Refused(f"{path}: no such file on the server's machine; does it share the folder with the learner?")
    return file


def read_header(data: Any, name: str) -> tuple[dict[str, Any], int]:
    """Parses the head of a safetensors file (https://huggingface.co/docs/safetensors).

    Args:
      data: the whole file's bytes, or a memory map of them.
      name: for messages.

    Returns:
      Tensor name -> {"dtype", "shape", "data_offsets"} in the file's order, and where the data begins.

    Raises:
      Refused: it is cut short, or not consistent.
    """
    total = len(data)
    size = int.from_bytes(data[:8], "little") if total >= 8 else HEADER_LIMIT
    if size > min(HEADER_LIMIT, total - 8):
        raise Refused(f"{name}: cut short or not a safetensors file ({total} bytes)")
    try:
        header = json.loads(data[8 : 8 + size])
        header.pop("__metadata__", None)
        at = 0
        for entry in header.values():
            start, end = entry["data_offsets"]
            if start != at or end - start != math.prod(entry["shape"]) * ITEM_BYTES[entry["dtype"]]:
                raise Refused(f"{name}: the header's offsets do not fit together")
            at = end
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise err if isinstance(err, Refused) else Refused(f"{name}: broken header ({err!r})") from err
    if 8 + size + at != total:
        raise Refused(f"{name}: {total} bytes, its header asks for {8 + size + at}; it is cut short")
    return header, 8 + size


def checksum_of(header: dict[str, Any], data: Any, base: int) -> str:
    """The checksum of a file's tensors: names, types, shapes and the CRC-32 of every one, hashed together."""
    total = Checksum()
    with memoryview(data) as view:
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            with view[base + start : base + end] as part:
                total.add(name, entry["dtype"], entry["shape"], part)
    return total.hexdigest()


class Checksum:
    """Sums up tensors one after the other, on the side that writes and on the side that reads."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, name: str, dtype: str, shape: Any, data: Any) -> None:
        """Adds a tensor.

        Args:
          name: its name.
          dtype: as safetensors writes it, such as "BF16".
          shape: its shape.
          data: its bytes, little-endian and contiguous.
        """
        self._hash.update(f"{name} {dtype} {list(shape)} {zlib.crc32(data):08x}\n".encode())

    def hexdigest(self) -> str:
        """The checksum so far."""
        return self._hash.hexdigest()


def pull(url: str, suffix: str) -> pathlib.Path:
    """Fetches a weight file into the allowed folder; VLLM_API_KEY is sent along as bearer token.

    Raises:
      Refused: the address is not allowed or did not answer with the whole file.
    """
    prefix, folder = os.environ.get(WEIGHTS_URL, ""), os.environ.get(WEIGHTS_DIR, "")
    if not prefix or not folder:
        raise Refused(f"this server pulls no weights: it was started without {WEIGHTS_URL} and {WEIGHTS_DIR}")
    parts, allowed = urllib.parse.urlsplit(url), urllib.parse.urlsplit(prefix)
    if (parts.scheme, parts.netloc) != (allowed.scheme, allowed.netloc) or not parts.path.startswith(allowed.path):
        raise Refused(f"{url}: not under the address that this server takes weights from, {prefix}")
    if parts.scheme not in ("http", "https") or ".." in parts.path or "@" in parts.netloc:
        raise Refused(f"{url}: not a plain http address")
    request = urllib.request.Request(url)
    if os.environ.get("VLLM_API_KEY"):
        request.add_header("Authorization", f"Bearer {os.environ['VLLM_API_KEY']}")
    target = pathlib.Path(folder) / f"pulled.{suffix}{SUFFIX}"
    try:
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=PULL_LIMIT_S) as answer, target.open("xb") as out:
            shutil.copyfileobj(answer, out, 1 << 22)
            expected = answer.headers.get("Content-Length")
            if expected is not None and out.tell() != int(expected):
                raise Refused(f"{url}: {out.tell()} of {expected} bytes arrived")
    except (OSError, Refused) as err:
        target.unlink(missing_ok=True)
        raise err if isinstance(err, Refused) else Refused(f"{url}: {err}") from err
    return target


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def architecture(config: dict[str, Any]) -> dict[str, Any]:
    """The values of a config.json that decide whether two models can share weights."""
    rope = config.get("rope_parameters") or {}
    config = {"rope_theta": rope.get("rope_theta")} | {k: v for k, v in config.items() if v is not None}
    return {name: config.get(name) for name in ARCHITECTURE}


def tokenizer_fingerprint(content: bytes) -> str:
    """A hash of the vocabulary in a tokenizer.json; "" if it cannot be read as one."""
    try:
        tokenizer = json.loads(content)
        vocab = tokenizer["model"]["vocab"]
        pairs = sorted(vocab.items()) if isinstance(vocab, dict) else [(token[0], i) for i, token in enumerate(vocab)]
        added = sorted((token["content"], token["id"]) for token in tokenizer.get("added_tokens", ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    return hashlib.blake2b(json.dumps([pairs, added]).encode(), digest_size=16).hexdigest()


def _tensors(header: dict[str, Any], data: mmap.mmap, base: int) -> Iterator[tuple[str, Any]]:
    import torch

    types = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        kind = types[entry["dtype"]]
        count = (end - start) // ITEM_BYTES[entry["dtype"]]
        # A copy: the model must not hold on to the file's memory after it is closed.
        yield name, torch.frombuffer(data, dtype=kind, count=count, offset=base + start).clone().view(entry["shape"])


def checkpoint_shapes(folder: pathlib.Path) -> dict[str, list[int]]:
    """Names and shapes in a model folder; empty if the model is not a local folder of safetensors."""
    shapes: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*" + SUFFIX)) if folder.is_dir() else ():
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(min(size, HEADER_LIMIT)))
        shapes |= {name: list(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    return {name: shape for name, shape in shapes.items() if "rotary_emb" not in name}


def _model_json(model_config: Any) -> dict[str, Any]:
    file = pathlib.Path(model_config.model) / "config.json"
    if file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    return model_config.hf_config.to_dict()


def _tokenizer_json(model_config: Any) -> bytes:
    file = pathlib.Path(model_config.tokenizer or model_config.model) / "tokenizer.json"
    return file.read_bytes() if file.is_file() else b""
