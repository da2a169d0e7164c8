"""Worker extension of a vLLM server: describes the server, checks pushed files and loads them.

`--worker-extension-cls gigpo_jax.engines.vllm.worker.extension.WeightLoader` adds it to a server;
the learner calls its methods through `POST /collective_rpc`. It runs in vLLM's environment: the
imports at the top need only the standard library, torch and vllm are imported where they are used.
Methods return dicts of JSON values, failures under "error". A file is checked before the model is
touched, because an exception in the middle of a reload leaves a useless server. Only files directly
in GIGPO_WEIGHTS_DIR are read; a push names them without a path.
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

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.vllm.worker.adapters import AdapterSwitch
from gigpo_jax.engines.vllm.worker.entropies import keep_entropies
from gigpo_jax.engines.vllm.worker.vocabulary import mask_padding
from gigpo_jax.models.families.family import FAMILIES, find_family
from gigpo_jax.models.files.checksum import Checksum, folder_checksum
from gigpo_jax.models.files.safetensors_file import ITEM_BYTES, Entry, parse_header
from gigpo_jax.models.linear_names import DECODERS
from gigpo_jax.models.vision.vision_config import VisionConfig, decoder_json, read_vision

WEIGHTS_DIR = "GIGPO_WEIGHTS_DIR"
ADAPTER_TENSORS = "adapter_model.safetensors"  # in the folder of an adapter
# Keys of config.json that must be the same for server and learner.
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
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "decoder_sparse_step",
    "mlp_only_layers",
)


class WeightLoader:
    """Mixed into vLLM's worker class, which provides the three attributes."""

    model_runner: Any
    model_config: Any
    vllm_config: Any
    _base = ""
    _adapter_switch: AdapterSwitch | None = None

    def gigpo_describe(self) -> dict[str, Any]:
        """Returns the model, tokenizer and settings that the learner checks."""
        config = self.vllm_config
        model = self.model_config
        tokenizer_file = pathlib.Path(model.tokenizer or model.model) / "tokenizer.json"
        tokenizer = tokenizer_file.read_bytes() if tokenizer_file.is_file() else b""
        model_json = _model_json(model)
        adapter_rank = 0
        if config.lora_config is not None:
            adapter_rank = int(config.lora_config.max_lora_rank)
        # A request's own seed together with chunked prefill kills the engine of the CPU build.
        is_cpu = config.device_config.device_type == "cpu"
        takes_seeds = not (is_cpu and config.scheduler_config.enable_chunked_prefill)
        cache_dtype = str(config.cache_config.cache_dtype)
        description = architecture(model_json)
        description |= describe_vision(_read_tower(model_json, pathlib.Path(model.model)))
        description |= {
            "tokenizer": tokenizer_fingerprint(tokenizer),
            "dtype": _dtype_name(model.dtype),
            "head_dtype": _dtype_name(model.head_dtype),
            "cache_dtype": _dtype_name(model.dtype) if cache_dtype == "auto" else cache_dtype,
            "quantization": str(model.quantization or "none"),
            "logprobs_mode": str(getattr(model.logprobs_mode, "value", model.logprobs_mode)),
            "max_model_len": int(model.max_model_len),
            "max_num_seqs": int(config.scheduler_config.max_num_seqs),
            "takes_seeds": takes_seeds,
            "adapter_rank": adapter_rank,
            "weights_dir": os.environ.get(WEIGHTS_DIR, ""),
        }
        return description

    def gigpo_load(self, name: str, checksum: str) -> dict[str, Any]:
        """Replaces all weights.

        Args:
          name: Safetensors file with Hugging Face names.
          checksum: Checksum of its tensors, see `Checksum`.

        Returns:
          "checksum", "bytes" and "seconds", or "error".
        """
        start = time.monotonic()
        try:
            if self.vllm_config.lora_config is not None:
                raise InputError(
                    "the model below the adapters cannot be replaced", key="--enable-lora"
                )
            with open_verified(allowed_path(name), checksum) as (entries, data):
                self._reload_model(entries, data)
        except (InputError, OSError) as err:
            return {"error": str(err)}
        return _load_report(entries, checksum, start)

    def gigpo_check_adapter(self, name: str, checksum: str, base: str) -> dict[str, Any]:
        """Checks an adapter, which `/v1/load_lora_adapter` loads afterwards.

        Args:
          name: Folder in PEFT's layout.
          checksum: Checksum of its tensors.
          base: `folder_checksum` of the model that it was trained on.

        Returns:
          "checksum", "bytes", "seconds" and "folder", the adapter's path on this server, or
          "error".
        """
        start = time.monotonic()
        model = pathlib.Path(self.model_config.model)
        try:
            # Computed once: it reads the whole model, which does not change below adapters.
            self._base = self._base or folder_checksum(model)
            if self._base != base:
                raise InputError(
                    "not the weights of the learner's model.path",
                    key=model,
                    fix="serve that folder",
                )
            folder = allowed_path(name)
            with open_verified(folder / ADAPTER_TENSORS, checksum) as (entries, _):
                pass
            if self._adapter_switch is None:
                self._adapter_switch = AdapterSwitch(self.model_runner.lora_manager)
        except (InputError, OSError, AttributeError) as err:
            return {"error": str(err)}
        return _load_report(entries, checksum, start) | {"folder": str(folder)}

    def gigpo_replace_adapter(
        self, adapter: str, name: str, checksum: str, base: str
    ) -> dict[str, Any]:
        """Replaces the tensors of a loaded adapter, with which running requests go on.

        Nothing may be computed meanwhile, and no keys and values of the old tensors may be left
        (`/pause?mode=keep`).

        Args:
          adapter: Name that `/v1/load_lora_adapter` has loaded.
          name, checksum, base: See `gigpo_check_adapter`, which the result is of.
        """
        report = self.gigpo_check_adapter(name, checksum, base)
        if self._adapter_switch is not None and "error" not in report:
            self._adapter_switch.replace(adapter, report["folder"])
        return report

    def gigpo_keep_entropies(self) -> dict[str, Any]:
        """Makes the sampler return entropies; see `entropies`."""
        if self.vllm_config.speculative_config is not None:
            # Its own sampler of drafted tokens would return none.
            return {"error": "speculative decoding has no entropies"}
        try:
            keep_entropies(self.model_runner)
        except AttributeError as err:
            return {"error": f"this vLLM samples otherwise ({err})"}
        return {}

    def gigpo_mask_padding(self, num_tokens: int) -> dict[str, Any]:
        """Makes the model never sample ids without a token; see `vocabulary`."""
        mask_padding(self.model_runner.get_model(), num_tokens)
        return {}

    def _reload_model(self, entries: dict[str, Entry], data: mmap.mmap) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        with set_current_vllm_config(self.vllm_config):
            if self.vllm_config.device_config.device_type == "cpu":
                self._drop_expert_kernels()
            self.model_runner.reload_weights(weights_iterator=_tensors(entries, data))
            # On a CPU the output head keeps a packed copy of its weights, which the reload of a
            # tied head skips.
            for module in self.model_runner.get_model().modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)

    def _drop_expert_kernels(self) -> None:
        # On a CPU the matrices of experts are packed when their kernel is made: a reload that keeps
        # the kernel would leave them unpacked.
        for module in self.model_runner.get_model().modules():
            if hasattr(getattr(module, "quant_method", None), "moe_kernel"):
                module.quant_method.moe_kernel = None


def allowed_path(name: str) -> pathlib.Path:
    """Returns the path of a file or folder in GIGPO_WEIGHTS_DIR.

    Raises:
      InputError: The path is elsewhere or does not exist, or the variable is not set.
    """
    if not os.environ.get(WEIGHTS_DIR):
        raise InputError("not set: this server takes no weights", key=WEIGHTS_DIR)
    return locate_weights(pathlib.Path(os.environ[WEIGHTS_DIR]), name)


def locate_weights(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the path of an entry of a folder.

    Raises:
      InputError: The path is elsewhere or does not exist.
    """
    folder = folder.resolve()
    # `resolve` follows links and "..", so that neither leads out of the folder.
    path = (folder / name).resolve()
    if path.parent != folder:
        raise InputError(
            f"not in {folder}, the folder that this server takes weights from", key=name
        )
    if not path.exists():
        raise InputError(
            "not on the server's machine",
            key=path,
            fix="share the folder with the learner",
        )
    return path


@contextlib.contextmanager
def open_verified(
    file: pathlib.Path, checksum: str
) -> Iterator[tuple[dict[str, Entry], mmap.mmap]]:
    """Maps a safetensors file into memory and verifies its checksum.

    Yields:
      The entries of the file, and its bytes. They stay as long as a tensor is a view of them, also
      when the file is deleted.

    Raises:
      InputError: The file is broken, or its tensors have another checksum.
      OSError: The file cannot be read.
    """
    total = Checksum()
    with file.open("rb") as stream:
        entries = parse_header(stream, str(file))
        # A private writable map: `torch.frombuffer` warns about buffers that are read-only. It is
        # not closed here, because views of it may be left in cycles of references.
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        total.add_file(entries, data)
        if total.hexdigest() != checksum:
            raise InputError(
                f"checksum {total.hexdigest()}, the learner wrote {checksum}", key=file
            )
        yield entries, data


def architecture(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the config.json values that models with equal weights share, vision aside."""
    model_type = config.get("model_type")
    if model_type in DECODERS:
        config = decoder_json(config) | {"model_type": model_type}
    heads = config.get("num_attention_heads") or 1
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = rope.get("full_attention", rope)
    defaults = {
        "head_dim": config.get("hidden_size", 0) // heads,
        # transformers 5 writes the number of experts under this name.
        "num_experts": config.get("num_local_experts"),
    }
    if model_type in FAMILIES:
        defaults |= find_family(model_type).defaults
    if "rope_theta" in rope:
        defaults["rope_theta"] = rope["rope_theta"]
    config = defaults | {name: value for name, value in config.items() if value is not None}
    # Only the numbers: releases of transformers name the type differently.
    config["rope_scaling"] = {
        name: value for name, value in rope.items() if name.endswith(("factor", "embeddings"))
    }
    return {name: config.get(name) for name in ARCHITECTURE}


def describe_vision(vision: VisionConfig | None) -> dict[str, Any]:
    """Returns the values of a vision tower that must agree, image sizes among them."""
    if vision is None:
        return {}
    # JSON has no tuples: the values of server and learner are compared as lists.
    return {
        f"vision.{name}": list(value) if isinstance(value, tuple) else value
        for name, value in asdict(vision).items()
    }


def tokenizer_fingerprint(content: bytes) -> str:
    """Returns a hash of the vocabulary in a tokenizer.json, or "" if there is none."""
    try:
        tokenizer = json.loads(content)
        vocab = tokenizer["model"]["vocab"]
        # A Unigram model has a list of (token, score) instead, whose index is the id.
        if isinstance(vocab, dict):
            pairs = sorted(vocab.items())
        else:
            pairs = [(token[0], index) for index, token in enumerate(vocab)]
        added_tokens = tokenizer.get("added_tokens", ())
        added = sorted((token["content"], token["id"]) for token in added_tokens)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    return hashlib.blake2b(json.dumps([pairs, added]).encode(), digest_size=16).hexdigest()


def _tensors(entries: dict[str, Entry], data: mmap.mmap) -> Iterator[tuple[str, Any]]:
    import torch

    types = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    for name, entry in entries.items():
        count = (entry.end - entry.start) // ITEM_BYTES[entry.dtype]
        flat = torch.frombuffer(data, dtype=types[entry.dtype], count=count, offset=entry.start)
        yield name, flat.view(entry.shape)


def _load_report(entries: dict[str, Entry], checksum: str, start: float) -> dict[str, Any]:
    size = sum(entry.end - entry.start for entry in entries.values())
    return {"checksum": checksum, "bytes": size, "seconds": time.monotonic() - start}


def _read_tower(model_json: dict[str, Any], folder: pathlib.Path) -> VisionConfig | None:
    model_type = model_json.get("model_type")
    if model_type not in DECODERS:
        return None
    text = decoder_json(model_json)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    return read_vision(model_type, text, rope, folder, text["hidden_size"])


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _model_json(model_config: Any) -> dict[str, Any]:
    file = pathlib.Path(model_config.model) / "config.json"
    if file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    return model_config.hf_config.to_dict()
