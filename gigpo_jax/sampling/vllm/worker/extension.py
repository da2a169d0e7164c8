"""Worker extension of a vLLM server: describes the server, checks pushed files and loads them.

The server gets it as `--worker-extension-cls gigpo_jax.sampling.vllm.worker.extension.WeightLoader`; the learner calls
its methods through `POST /collective_rpc`. It runs in vLLM's environment: the imports at the top need the standard
library alone, torch and vllm are imported where they are used. Methods return dicts of JSON values, failures under
"error". A file is checked before the model is touched, because an exception in the middle of a reload leaves a useless
server. Only files directly in GIGPO_WEIGHTS_DIR are read; a push names them without a path.
"""

import contextlib
import hashlib
import json
import mmap
import os
import pathlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from gigpo_jax.errors import InputError
from gigpo_jax.models.checksum import Checksum, folder_checksum
from gigpo_jax.models.safetensors_file import ITEM_BYTES, Entry, parse_header
from gigpo_jax.models.vision_config import VL, VisionConfig, decoder_json, read_vision

WEIGHTS_DIR = "GIGPO_WEIGHTS_DIR"
ADAPTER_TENSORS = "adapter_model.safetensors"  # in the folder of an adapter
# What must be the same in the config.json of server and learner.
ARCHITECTURE = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
)


class WeightLoader:
    """Mixed into vLLM's worker class, which provides the three attributes."""

    model_runner: Any
    model_config: Any
    vllm_config: Any
    _base = ""

    def gigpo_describe(self) -> dict[str, Any]:
        """Returns the model, the tokenizer and the settings that the learner checks."""
        config, model = self.vllm_config, self.model_config
        tokenizer = pathlib.Path(model.tokenizer or model.model) / "tokenizer.json"
        raw = _model_json(model)
        return (
            architecture(raw)
            | described_vision(_vision(raw, pathlib.Path(model.model)))
            | {
                "tokenizer": tokenizer_fingerprint(tokenizer.read_bytes() if tokenizer.is_file() else b""),
                "dtype": str(model.dtype).removeprefix("torch."),
                "logprobs_mode": str(getattr(model.logprobs_mode, "value", model.logprobs_mode)),
                "max_model_len": int(model.max_model_len),
                # A request's own seed together with chunked prefill kills the engine of the CPU build.
                "takes_seeds": config.device_config.device_type != "cpu"
                or not config.scheduler_config.enable_chunked_prefill,
                "adapter_rank": int(config.lora_config.max_lora_rank) if config.lora_config is not None else 0,
                "weights_dir": os.environ.get(WEIGHTS_DIR, ""),
            }
        )

    def gigpo_load(self, name: str, checksum: str) -> dict[str, Any]:
        """Replaces all weights.

        Args:
          name: a safetensors file with Hugging Face names.
          checksum: of its tensors, see `Checksum`.

        Returns:
          "checksum", "bytes" and "seconds", or "error".
        """
        started = time.monotonic()
        try:
            if self.vllm_config.lora_config is not None:
                raise InputError("started with --enable-lora: the model below the adapters cannot be replaced")
            with verified(allowed(name), checksum) as (entries, data):
                self._load(entries, data)
        except (InputError, OSError) as err:
            return {"error": str(err)}
        return _report(entries, checksum, started)

    def gigpo_check_adapter(self, name: str, checksum: str, base: str) -> dict[str, Any]:
        """Checks an adapter, which `/v1/load_lora_adapter` loads afterwards.

        Args:
          name: a folder in PEFT's layout.
          checksum: of its tensors.
          base: `folder_checksum` of the model that it was trained on.

        Returns:
          "checksum", "bytes", "seconds" and "folder", where this server sees it, or "error".
        """
        started, model = time.monotonic(), pathlib.Path(self.model_config.model)
        try:
            self._base = self._base or folder_checksum(model)
            if self._base != base:
                raise InputError(f"{model}: not the weights of the learner's model.path; serve that folder")
            folder = allowed(name)
            with verified(folder / ADAPTER_TENSORS, checksum) as (entries, _):
                pass
        except (InputError, OSError) as err:
            return {"error": str(err)}
        return _report(entries, checksum, started) | {"folder": str(folder)}

    def _load(self, entries: dict[str, Entry], data: mmap.mmap) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        with set_current_vllm_config(self.vllm_config):
            self.model_runner.reload_weights(weights_iterator=_tensors(entries, data))
            # On a CPU the output head keeps a packed copy of its weights, which the reload of a tied head skips.
            for module in self.model_runner.get_model().modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)


def allowed(name: str) -> pathlib.Path:
    """Returns the path of a file or folder directly in GIGPO_WEIGHTS_DIR.

    Raises:
      InputError: it is elsewhere or absent, or the variable is not set.
    """
    if not os.environ.get(WEIGHTS_DIR):
        raise InputError(f"{WEIGHTS_DIR} is not set: this server takes no weights")
    folder = pathlib.Path(os.environ[WEIGHTS_DIR]).resolve()
    path = (folder / name).resolve()
    if path.parent != folder:
        raise InputError(f"{name}: not in {folder}, the folder that this server takes weights from")
    if not path.exists():
        raise InputError(f"{path}: not on the server's machine; does it share the folder with the learner?")
    return path


@contextlib.contextmanager
def verified(file: pathlib.Path, checksum: str) -> Iterator[tuple[dict[str, Entry], mmap.mmap]]:
    """Maps a safetensors file into memory whose tensors have this checksum; yields its entries and bytes.

    Raises:
      InputError: it is broken, or its tensors have another checksum.
      OSError: it cannot be read.
    """
    total = Checksum()
    with file.open("rb") as stream:
        entries = parse_header(stream, str(file))
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY) as data:
            total.add_file(entries, data)
            if total.hexdigest() != checksum:
                raise InputError(f"{file}: checksum {total.hexdigest()}, the learner wrote {checksum}")
            yield entries, data


def architecture(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a config.json that must agree for two models to share weights; not those of a tower."""
    if config.get("model_type") == VL:
        config = decoder_json(config) | {"model_type": VL}
    heads = config.get("num_attention_heads") or 1
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    defaults = {"rope_theta": rope.get("rope_theta"), "head_dim": config.get("hidden_size", 0) // heads}
    config = defaults | {name: value for name, value in config.items() if value is not None}
    config["rope_scaling"] = {name: value for name, value in rope.items() if name.endswith(("factor", "embeddings"))}
    return {name: config.get(name) for name in ARCHITECTURE}


def described_vision(vision: VisionConfig | None) -> dict[str, Any]:
    """Returns what else must agree of models with a vision tower, image sizes included; nothing without a tower."""
    fields = {} if vision is None else asdict(vision)
    return {f"vision.{name}": list(x) if isinstance(x, tuple) else x for name, x in fields.items()}


def tokenizer_fingerprint(content: bytes) -> str:
    """Returns a hash of the vocabulary in a tokenizer.json; "" if it has none."""
    try:
        tokenizer = json.loads(content)
        vocab = tokenizer["model"]["vocab"]
        pairs = sorted(vocab.items()) if isinstance(vocab, dict) else [(token[0], i) for i, token in enumerate(vocab)]
        added = sorted((token["content"], token["id"]) for token in tokenizer.get("added_tokens", ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    return hashlib.blake2b(json.dumps([pairs, added]).encode(), digest_size=16).hexdigest()


def _tensors(entries: dict[str, Entry], data: mmap.mmap) -> Iterator[tuple[str, Any]]:
    import torch

    types = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    for name, entry in entries.items():
        count = (entry.end - entry.start) // ITEM_BYTES[entry.dtype]
        flat = torch.frombuffer(data, dtype=types[entry.dtype], count=count, offset=entry.start)
        yield name, flat.clone().view(entry.shape)  # a copy, because the file is closed afterwards


def _report(entries: dict[str, Entry], checksum: str, started: float) -> dict[str, Any]:
    size = sum(entry.end - entry.start for entry in entries.values())
    return {"checksum": checksum, "bytes": size, "seconds": time.monotonic() - started}


def _vision(raw: dict[str, Any], folder: pathlib.Path) -> VisionConfig | None:
    if raw.get("model_type") != VL:
        return None
    text = decoder_json(raw)
    return read_vision(text, text.get("rope_parameters") or text.get("rope_scaling") or {}, folder, text["hidden_size"])


def _model_json(model_config: Any) -> dict[str, Any]:
    file = pathlib.Path(model_config.model) / "config.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else model_config.hf_config.to_dict()
