"""Adapters on disk in the layout of PEFT (https://huggingface.co/docs/peft), which transformers and vLLM load.

A folder has adapter_config.json and adapter_model.safetensors; A is stored there as [R, I] and B as [O, R], layer by
layer, under the names that the linear layers have in a Hugging Face model. `tower` says that the model has a vision
tower: its decoder has another name there.
"""

import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from gigpo_jax.errors import InputError
from gigpo_jax.models import lora
from gigpo_jax.models.linears import LINEARS, VISION_LINEARS
from gigpo_jax.models.lora import LoraConfig
from gigpo_jax.models.qwen2 import Params, Qwen2Config
from gigpo_jax.models.safetensors_file import OnTensor, read_header
from gigpo_jax.models.weights import check_dtype, check_finite, mapped, to_host, write_safetensors

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
_PARTS = {"lora_a": "lora_A", "lora_b": "lora_B"}
# What PEFT can do beyond plain pairs, and the value that says it does not.
_PLAIN = {
    "bias": "none",
    "use_dora": False,
    "use_rslora": False,
    "modules_to_save": None,
    "rank_pattern": None,
    "alpha_pattern": None,
}
Names = list[tuple[str, tuple[int, ...]]]


def tensor_names(adapter: Params, *, tower: bool) -> Names:
    """Name and stored shape of every tensor of an adapter (or of its shapes), in the order of the file."""
    return [
        (_name(stack, layer, ours, part, tower=tower), pair[part].shape[:0:-1])
        for stack, pairs in lora.stacks(adapter).items()
        for ours, pair in pairs.items()
        for part in _PARTS
        for layer in range(pair[part].shape[0])
    ]


def write_adapter(
    folder: pathlib.Path | None,
    config: LoraConfig,
    adapter: Params,
    *,
    base: str,
    tower: bool = False,
    dtype: Any = np.float32,
    on_tensor: OnTensor | None = None,
) -> None:
    """Writes a folder that PEFT, vLLM and `load_adapter` read, for the model `base`.

    All processes must call this; those with `folder` None only take part in gathering. Not atomic; raises OSError.
    """
    dtype = np.dtype(dtype)

    def tensors() -> Iterator[np.ndarray]:
        for pair in (pair for pairs in lora.stacks(adapter).values() for pair in pairs.values()):
            for part in _PARTS:
                for layer in to_host(pair[part]):
                    yield np.ascontiguousarray(layer.T, dtype)

    if folder is None:
        for _ in tensors():
            pass
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config_json(config, base, tower=tower), indent=2) + "\n")
    write_safetensors(folder / TENSORS, tensor_names(adapter, tower=tower), tensors(), dtype, on_tensor)


def config_json(config: LoraConfig, base: str, *, tower: bool) -> dict[str, Any]:
    """The content of adapter_config.json; `base` is name or folder of the model."""
    alpha, modules = config.alpha, "|".join(config.targets)
    pattern = rf".*\.language_model\..*\.({modules})"  # gate_proj alone would be a module of the tower too
    if config.vision:
        pattern += rf"|.*\.visual\.blocks\..*\.({'|'.join(name.split('.')[1] for name in VISION_LINEARS.values())})"
    return {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": config.rank,
        "target_modules": pattern if tower else list(config.targets),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }


def save_adapter(
    folder: str | pathlib.Path, config: LoraConfig, adapter: Params, *, base: str, tower: bool = False
) -> None:
    """As `write_adapter`, in float32, by the first process; raises InputError if it cannot be written."""
    folder = pathlib.Path(folder)
    try:
        write_adapter(folder if jax.process_index() == 0 else None, config, adapter, base=base, tower=tower)
    except OSError as err:
        raise InputError(f"{folder}: cannot be written ({err.strerror}); choose another path or make room") from err


def load_adapter(folder: str | pathlib.Path, shape: Qwen2Config, config: LoraConfig) -> Params:
    """Reads an adapter of this project or of PEFT, for a model of this `shape`, as float32 numpy arrays.

    Raises:
      InputError: a file is missing or broken, numbers are not finite, or the adapter is not what `config` says.
    """
    folder = pathlib.Path(folder)
    _check_config(folder / CONFIG, config)
    shapes, file, tower = lora.abstract(shape, config), folder / TENSORS, shape.vision is not None
    entries = read_header(file)
    found, expected = {name: entry.shape for name, entry in entries.items()}, dict(tensor_names(shapes, tower=tower))
    odd = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    if odd:
        raise InputError(
            f"{file}: {len(odd)} tensors are not those of model.path and model.lora, such as {odd[0]}: shape "
            f"{found.get(odd[0])}, expected {expected.get(odd[0])}"
        )

    def tensor(name: str) -> np.ndarray:
        check_dtype(file, name, entries[name])
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(mapped(file, entries[name]).T, np.float32)
        check_finite(file, name, array)
        return array

    def stacked(stack: str, ours: str, part: str, depth: int) -> np.ndarray:
        return np.stack([tensor(_name(stack, layer, ours, part, tower=tower)) for layer in range(depth)])

    read = {
        stack: {
            ours: {part: stacked(stack, ours, part, pair[part].shape[0]) for part in _PARTS}
            for ours, pair in pairs.items()
        }
        for stack, pairs in lora.stacks(shapes).items()
    }
    return lora.with_stacks({}, read)


def _check_config(file: pathlib.Path, config: LoraConfig) -> None:
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        modules = raw["target_modules"]  # a pattern is checked by the tensors that it led to
        modules = sorted(config.targets) if isinstance(modules, str) else sorted(modules)
        found = (int(raw["r"]), float(raw["lora_alpha"]), modules)
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise InputError(f"{file}: missing or broken ({err!r}); give an adapter's folder in PEFT's layout") from err
    for key, plain in _PLAIN.items():
        if raw.get(key, plain) != plain and raw[key]:  # false, none and empty all say that it is not used
            raise InputError(f"{file}: {key}={raw[key]!r} is not supported")
    wanted = (config.rank, config.alpha, sorted(config.targets))
    if found[0] != wanted[0] or not math.isclose(found[1], wanted[1]) or found[2] != wanted[2]:
        raise InputError(f"{file}: rank, alpha and targets are {found}, config.model.lora has {wanted}")


def _name(stack: str, layer: int, ours: str, part: str, *, tower: bool) -> str:
    text = "language_model.layers" if tower else "layers"
    blocks, module = (text, LINEARS[ours]) if stack == "text" else ("visual.blocks", VISION_LINEARS[ours])
    return f"base_model.model.model.{blocks}.{layer}.{module}.{_PARTS[part]}.weight"
