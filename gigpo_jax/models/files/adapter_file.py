"""Adapters on disk in the layout of PEFT (https://huggingface.co/docs/peft).

transformers and vLLM load them. A folder has adapter_config.json and adapter_model.safetensors; A
is stored there as [R, I] and B as [O, R], layer by layer, under the names that the linear layers
have in a Hugging Face model. `tower` is the model_type of a model with a vision tower, whose
decoder has another name there; "": there is no tower. `numbers` is the result of
`lora.layer_numbers`.
"""

import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.models import lora
from gigpo_jax.models.decoder import DecoderConfig, Params
from gigpo_jax.models.files.safetensors_file import read_header
from gigpo_jax.models.files.safetensors_output import OnTensor
from gigpo_jax.models.files.save_weights import gather_to_host, write_safetensors
from gigpo_jax.models.files.weights import check_dtype, check_finite, map_tensor
from gigpo_jax.models.linear_names import LINEARS
from gigpo_jax.models.lora import LoraConfig
from gigpo_jax.models.vision.linears import VISION_LINEARS

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
_FACTORS = {"lora_a": "lora_A", "lora_b": "lora_B"}
# Keys of PEFT that do not change what plain pairs compute. Any other key must be off: adapters of
# PiSSA, OLoRA or LoftQ belong to a changed base, those of other kinds are no pairs.
_KNOWN_KEYS = {
    "r",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "base_model_name_or_path",
    "revision",
    "task_type",
    "auto_mapping",
    "inference_mode",
    "runtime_config",
    "peft_version",
    "corda_config",
    "eva_config",
    "ensure_weight_tying",
    "megatron_core",
    "qalora_group_size",
    "loftq_config",
}
# Values that leave the base as it is, beside false, null, "none" and empty ones.
_PLAIN_VALUES = {
    "peft_type": ("LORA",),
    "init_lora_weights": (True, "gaussian", "eva", "orthogonal"),
    "bias": ("none",),
}
Names = list[tuple[str, tuple[int, ...]]]
Numbers = Mapping[str, Sequence[int]]


def tensor_names(adapter: Params, *, tower: str, numbers: Numbers) -> Names:
    """Returns name and stored shape of an adapter's tensors, in the order of the file.

    `adapter` may hold shapes in place of arrays.
    """
    names: Names = []
    for stack, pairs in lora.layer_stacks(adapter).items():
        for linear, pair in pairs.items():
            for factor in _FACTORS:
                depth, rows, columns = pair[factor].shape
                for layer in numbers.get(stack, range(depth)):
                    name = _tensor_name(stack, layer, linear, factor, tower=tower)
                    names.append((name, (columns, rows)))
    return names


def write_adapter(
    folder: pathlib.Path | None,
    config: LoraConfig,
    adapter: Params,
    *,
    base: str,
    numbers: Numbers,
    tower: str = "",
    dtype: Any = np.float32,
    on_tensor: OnTensor | None = None,
) -> None:
    """Writes a folder for the model `base` that PEFT, vLLM and `load_adapter` read.

    All processes must call this; processes with `folder` None only take part in gathering. The
    write is not atomic and raises OSError.
    """
    dtype = np.dtype(dtype)

    # In the order of `tensor_names`, from which the header is written.
    def make_tensors() -> Iterator[np.ndarray]:
        for pairs in lora.layer_stacks(adapter).values():
            for pair in pairs.values():
                for factor in _FACTORS:
                    for layer in gather_to_host(pair[factor]):
                        yield np.ascontiguousarray(layer.T, dtype)

    if folder is None:
        for _ in make_tensors():
            pass
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(
        json.dumps(config_json(config, base, tower=tower), indent=2) + "\n"
    )
    names = tensor_names(adapter, tower=tower, numbers=numbers)
    write_safetensors(folder / TENSORS, names, make_tensors(), dtype, on_tensor)


def config_json(config: LoraConfig, base: str, *, tower: str) -> dict[str, Any]:
    """Returns the content of adapter_config.json; `base` is name or folder of the model."""
    alpha = config.alpha
    modules = "|".join(config.targets)
    # A list of names would match modules of the tower too, such as gate_proj.
    pattern = rf".*\.language_model\..*\.({modules})"
    if config.vision:
        vision_modules = "|".join(name.split(".")[1] for name in VISION_LINEARS[tower].values())
        pattern += rf"|.*\.visual\.blocks\..*\.({vision_modules})"
    return {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        # PEFT declares alpha as an integer.
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
    folder: str | pathlib.Path,
    config: LoraConfig,
    adapter: Params,
    *,
    base: str,
    numbers: Numbers,
    tower: str = "",
) -> None:
    """Writes an adapter in float32 as `write_adapter` does, by the first process.

    Raises:
      InputError: the folder cannot be written.
    """
    folder = pathlib.Path(folder)
    try:
        writer_folder = folder if jax.process_index() == 0 else None
        write_adapter(writer_folder, config, adapter, base=base, numbers=numbers, tower=tower)
    except OSError as err:
        raise InputError(
            f"cannot be written ({err.strerror})",
            key=folder,
            fix="choose another path or make room",
        ) from err


def load_adapter(folder: str | pathlib.Path, shape: DecoderConfig, config: LoraConfig) -> Params:
    """Reads an adapter of this project or of PEFT as float32 numpy arrays.

    Args:
      folder: folder of the adapter.
      shape: shape of the model.
      config: expected shape of the adapter.

    Raises:
      InputError: a file is missing or broken, numbers are not finite, or the adapter does not have
        the shape `config`.
    """
    folder = pathlib.Path(folder)
    _check_config(folder / CONFIG, config)
    shapes = lora.abstract_adapter(shape, config)
    file = folder / TENSORS
    tower = shape.vision.model_type if shape.vision is not None else ""
    entries = read_header(file)
    stored_shapes = {name: entry.shape for name, entry in entries.items()}
    numbers = lora.layer_numbers(shape)
    expected_shapes = dict(tensor_names(shapes, tower=tower, numbers=numbers))
    differences = sorted(
        name
        for name in stored_shapes.keys() | expected_shapes.keys()
        if stored_shapes.get(name) != expected_shapes.get(name)
    )
    if differences:
        name = differences[0]
        raise InputError(
            f"{len(differences)} tensors are not those of model.path and model.lora, such as "
            f"{name}: shape {stored_shapes.get(name)}, expected {expected_shapes.get(name)}",
            key=file,
        )

    def read_tensor(name: str) -> np.ndarray:
        check_dtype(file, name, entries[name])
        # `check_finite` reports what overflows.
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(map_tensor(file, entries[name]).T, np.float32)
        check_finite(file, name, array)
        return array

    def read_factor(stack: str, linear: str, factor: str, depth: int) -> np.ndarray:
        layers = numbers.get(stack, range(depth))
        names = [_tensor_name(stack, n, linear, factor, tower=tower) for n in layers]
        return np.stack([read_tensor(name) for name in names])

    stacks: dict[str, Params] = {}
    for stack, pairs in lora.layer_stacks(shapes).items():
        stacks[stack] = {}
        for linear, pair in pairs.items():
            stacks[stack][linear] = {
                factor: read_factor(stack, linear, factor, pair[factor].shape[0])
                for factor in _FACTORS
            }
    return lora.replace_stacks({}, stacks)


def _check_config(file: pathlib.Path, config: LoraConfig) -> None:
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        modules = raw["target_modules"]
        # A pattern is checked by the tensors that it led to.
        targets = sorted(config.targets if isinstance(modules, str) else modules)
        stored = (int(raw["r"]), float(raw["lora_alpha"]), targets)
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise InputError(
            f"missing or broken ({err!r})",
            key=file,
            fix="give an adapter's folder in PEFT's layout",
        ) from err
    for key in sorted(raw.keys() - _KNOWN_KEYS):
        if raw[key] and raw[key] not in _PLAIN_VALUES.get(key, ()):
            raise InputError(
                f"{key}={raw[key]!r:.80} is not supported", key=file, fix="use plain LoRA pairs"
            )
    expected = (config.rank, config.alpha, sorted(config.targets))
    alpha_equal = math.isclose(stored[1], expected[1])
    if stored[0] != expected[0] or not alpha_equal or stored[2] != expected[2]:
        raise InputError(
            f"rank, alpha and targets are {stored}, config.model.lora has {expected}", key=file
        )


def _tensor_name(stack: str, layer: int, linear: str, factor: str, *, tower: str) -> str:
    if stack == "vision":
        blocks = "visual.blocks"
        module = VISION_LINEARS[tower][linear]
    else:
        blocks = "language_model.layers" if tower else "layers"
        module = LINEARS[linear]
    # "base_model.model" is PEFT's wrapper; then follows the name in the model of transformers.
    return f"base_model.model.model.{blocks}.{layer}.{module}.{_FACTORS[factor]}.weight"
