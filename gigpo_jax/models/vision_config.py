"""The shape of a vision tower, and config.json and preprocessor_config.json of a Qwen2.5-VL folder <-> `VisionConfig`.

Fine-tuned models often keep only the keys that differ, so what is missing has the value of the published models.
"""

import pathlib
from dataclasses import dataclass
from typing import Any

from gigpo_jax.errors import InputError
from gigpo_jax.files import read_object

MEAN = (0.48145466, 0.4578275, 0.40821073)  # of CLIP, a channel, of values from 0 to 1
STD = (0.26862954, 0.26130258, 0.27577711)
MERGE = 2  # patches along a side of the square that becomes one token
FRAMES = 2  # a kernel covers two frames; a still image is the same frame twice
VL = "qwen2_5_vl"  # model_type
IMAGE_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")  # of the published tokenizers
PREPROCESSOR = "preprocessor_config.json"
_SIZES = {  # field of `VisionConfig` -> key of vision_config
    "depth": "depth",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_heads": "num_heads",
    "patch_size": "patch_size",
    "window_size": "window_size",
}
_TOKENS = {  # field -> key of config.json
    "image_token": "image_token_id",
    "start_token": "vision_start_token_id",
    "end_token": "vision_end_token_id",
}
_FIXED = {
    "spatial_merge_size": MERGE,
    "temporal_patch_size": FRAMES,
    "hidden_act": "silu",
    "in_channels": 3,
    "patch_size": 14,
}


@dataclass(frozen=True)
class VisionConfig:
    """The shape of a vision tower, and what the decoder knows of images; the defaults are those of Qwen2.5-VL.

    Attributes:
      depth: layers.
      hidden_size: width of the residual stream, W.
      intermediate_size: width inside the SwiGLU block.
      num_heads: heads, each W / num_heads wide; a multiple of 4.
      patch_size: pixels along a side of a patch.
      window_size: pixels along a side of a window.
      full_layers: the layers whose attention covers the whole image.
      sections: frequencies of the decoder's rotary embedding that turn with frame, row and column (M-RoPE).
      image_token: id of a place in the text that a feature takes.
      start_token: id before an image.
      end_token: id after it.
      min_pixels: images with fewer are enlarged.
      max_pixels: images with more are reduced.
    """

    depth: int = 32
    hidden_size: int = 1280
    intermediate_size: int = 3420
    num_heads: int = 16
    patch_size: int = 14
    window_size: int = 112
    full_layers: tuple[int, ...] = (7, 15, 23, 31)
    sections: tuple[int, int, int] = (16, 24, 24)
    image_token: int = 151655
    start_token: int = 151652
    end_token: int = 151653
    min_pixels: int = 3136
    max_pixels: int = 12845056

    def __post_init__(self) -> None:
        if self.hidden_size % (4 * self.num_heads):
            raise ValueError(f"vision hidden_size={self.hidden_size} must be a multiple of 4 x {self.num_heads} heads")
        if self.window_size % (MERGE * self.patch_size):
            raise ValueError(f"window_size={self.window_size} must be a multiple of {MERGE} x {self.patch_size}")

    @property
    def square(self) -> int:
        """Pixels along a side of the square that becomes one token."""
        return MERGE * self.patch_size

    @property
    def patch_values(self) -> int:
        """Numbers in a patch of one frame."""
        return 3 * self.patch_size**2


def decoder_json(raw: dict[str, Any]) -> dict[str, Any]:
    """The config.json of a model with a vision tower as that of its decoder alone; transformers 5 nests it."""
    text = raw.get("text_config")
    flat = (text if isinstance(text, dict) else {}) | raw | {"model_type": "qwen2"}
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := flat.get(key), dict):
            flat[key] = {name: "default" if value == "mrope" else value for name, value in rope.items()}
    return flat


def read_vision(raw: dict[str, Any], rope: dict[str, Any], folder: pathlib.Path, width: int) -> VisionConfig:
    """Reads the vision tower that config.json describes.

    Args:
      raw: config.json.
      rope: the settings of its rotary embedding.
      folder: it may have a preprocessor_config.json.
      width: of the decoder.

    Raises:
      InputError: a value that is not supported.
    """
    file, given = folder / "config.json", raw.get("vision_config") or {}
    if not isinstance(given, dict):
        raise InputError(f"{file}: vision_config={given!r:.80} must be an object; use the model's own config.json")
    for key, value in (_FIXED | {"out_hidden_size": width}).items():
        if given.get(key, value) != value:
            raise InputError(f"{file}: vision_config.{key}={given[key]!r:.80} is not supported; Qwen2.5-VL has {value}")
    fields: dict[str, Any] = {name: given[key] for name, key in _SIZES.items() if key in given}
    fields |= {name: raw[key] for name, key in _TOKENS.items() if key in raw} | _pixels(folder / PREPROCESSOR)
    bad = next((name for name, value in fields.items() if type(value) is not int or not 0 < value < 2**31), None)
    if bad is not None:
        key = _SIZES.get(bad) or _TOKENS.get(bad, bad)
        raise InputError(
            f"{folder}: {key}={fields[bad]!r:.80} must be a whole number above 0; use the model's own files"
        )
    full = given.get("fullatt_block_indexes", VisionConfig.full_layers)
    sections = rope.get("mrope_section", VisionConfig.sections)
    for key, value in (("vision_config.fullatt_block_indexes", full), ("mrope_section", sections)):
        if not isinstance(value, list | tuple) or not all(type(number) is int and number >= 0 for number in value):
            raise InputError(
                f"{file}: {key}={value!r:.80} must be a list of whole numbers; use the model's own config.json"
            )
    return VisionConfig(**fields, full_layers=tuple(full), sections=tuple(sections))


def _pixels(file: pathlib.Path) -> dict[str, Any]:
    """The bounds of an image's area; older files have them at the top, newer ones under `size`."""
    if not file.is_file():
        return {}
    raw = read_object(file)
    size = raw.get("size")
    size = size if isinstance(size, dict) else {}
    found = {
        "min_pixels": raw.get("min_pixels", size.get("shortest_edge")),
        "max_pixels": raw.get("max_pixels", size.get("longest_edge")),
    }
    return {name: value for name, value in found.items() if value is not None}


def vision_json(vision: VisionConfig, width: int) -> dict[str, Any]:
    """The keys of config.json that a text model does not have; `width` is the decoder's."""
    own = {key: getattr(vision, name) for name, key in _SIZES.items()} | _FIXED
    own |= {"out_hidden_size": width, "fullatt_block_indexes": list(vision.full_layers), "tokens_per_second": 2}
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": VL,
        "rope_scaling": {"type": "mrope", "mrope_section": list(vision.sections)},
        "vision_config": own | {"model_type": VL},
    } | {key: getattr(vision, name) for name, key in _TOKENS.items()}


def preprocessor_json(vision: VisionConfig) -> dict[str, Any]:
    """The content of preprocessor_config.json."""
    return {
        "image_mean": list(MEAN),
        "image_processor_type": "Qwen2VLImageProcessor",
        "image_std": list(STD),
        "max_pixels": vision.max_pixels,
        "merge_size": MERGE,
        "min_pixels": vision.min_pixels,
        "patch_size": vision.patch_size,
        "processor_class": "Qwen2_5_VLProcessor",
        "temporal_patch_size": FRAMES,
    }
