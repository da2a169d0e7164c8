"""The shape of a vision tower, read from and written to a Qwen2.5-VL folder.

Its files are config.json and preprocessor_config.json. Fine-tuned models often keep only the keys
that differ, so missing keys have the values of the published models.
"""

import pathlib
from dataclasses import dataclass
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import read_object

MEAN = (0.48145466, 0.4578275, 0.40821073)  # a channel, of values from 0 to 1 (CLIP)
STD = (0.26862954, 0.26130258, 0.27577711)
MERGE = 2  # patches along a side of the square that becomes one token
FRAMES = 2  # a kernel covers two frames; a still image is the same frame twice
VL = "qwen2_5_vl"  # model_type
# An image in the published chat templates.
IMAGE_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
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
# Values that this code is written for. A folder with another one is refused.
_FIXED = {
    "spatial_merge_size": MERGE,
    "temporal_patch_size": FRAMES,
    "hidden_act": "silu",
    "in_channels": 3,
    "patch_size": 14,
}


@dataclass(frozen=True)
class VisionConfig:
    """The shape of a vision tower.

    It also has the decoder's image settings. The defaults are those of Qwen2.5-VL.

    Attributes:
      depth: layers.
      hidden_size: width of the residual stream, W.
      intermediate_size: width inside the SwiGLU block.
      num_heads: heads, each W / num_heads wide; a multiple of 4.
      patch_size: pixels along a side of a patch.
      window_size: pixels along a side of a window.
      full_layers: indices of the layers whose attention covers the whole image.
      sections: frequencies of the decoder's rotary embedding that turn with frame, row and column
        (M-RoPE).
      image_token: token id of a place for a feature.
      start_token: token id before an image.
      end_token: token id after an image.
      min_pixels: smallest area; smaller images are enlarged.
      max_pixels: largest area; larger images are reduced.
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
            raise ValueError(
                f"vision hidden_size={self.hidden_size} must be a multiple of "
                f"4 x {self.num_heads} heads"
            )
        if self.window_size % (MERGE * self.patch_size):
            raise ValueError(
                f"window_size={self.window_size} must be a multiple of {MERGE} x {self.patch_size}"
            )

    @property
    def square(self) -> int:
        """Pixels along a side of one token's square."""
        return MERGE * self.patch_size

    @property
    def patch_values(self) -> int:
        """Numbers in a patch of one frame."""
        return 3 * self.patch_size**2


def decoder_json(raw: dict[str, Any]) -> dict[str, Any]:
    """Reduces a vision model's config.json to that of its decoder."""
    # transformers 5 nests the decoder's keys in text_config.
    text = raw.get("text_config")
    flat = (text if isinstance(text, dict) else {}) | raw | {"model_type": "qwen2"}
    for key in ("rope_scaling", "rope_parameters"):
        rope = flat.get(key)
        if isinstance(rope, dict):
            # M-RoPE on text alone is plain rotary embedding.
            flat[key] = {
                name: "default" if value == "mrope" else value for name, value in rope.items()
            }
    return flat


def read_vision(
    raw: dict[str, Any], rope: dict[str, Any], folder: pathlib.Path, width: int
) -> VisionConfig:
    """Reads the vision tower that config.json describes.

    Args:
      raw: content of config.json.
      rope: settings of its rotary embedding.
      folder: folder of the model, with or without a preprocessor_config.json.
      width: width of the decoder.

    Raises:
      InputError: a value is not supported.
    """
    file = folder / "config.json"
    tower = raw.get("vision_config") or {}
    if not isinstance(tower, dict):
        raise InputError(
            f"vision_config={tower!r:.80} must be an object",
            key=file,
            fix="use the model's own config.json",
        )
    for key, value in (_FIXED | {"out_hidden_size": width}).items():
        if tower.get(key, value) != value:
            raise InputError(
                f"vision_config.{key}={tower[key]!r:.80} is not supported",
                key=file,
                fix=f"use the model's own config.json, which has {value}",
            )
    fields: dict[str, Any] = {name: tower[key] for name, key in _SIZES.items() if key in tower}
    fields |= {name: raw[key] for name, key in _TOKENS.items() if key in raw}
    fields |= _read_pixel_bounds(folder / PREPROCESSOR)
    for name, value in fields.items():
        # Not `isinstance`: `true` in JSON is an int of Python too.
        if type(value) is not int or not 0 < value < 2**31:
            key = (_SIZES | _TOKENS).get(name, name)
            raise InputError(
                f"{key}={value!r:.80} must be a whole number above 0",
                key=folder,
                fix="use the model's own files",
            )
    return VisionConfig(
        **fields,
        full_layers=_read_numbers(
            tower,
            "fullatt_block_indexes",
            VisionConfig.full_layers,
            f"{file}: vision_config.fullatt_block_indexes",
        ),
        sections=_read_numbers(
            rope, "mrope_section", VisionConfig.sections, f"{file}: mrope_section"
        ),  # type: ignore[arg-type]
    )


def _read_numbers(
    content: dict[str, Any], key: str, default: tuple[int, ...], label: str
) -> tuple[int, ...]:
    value = content.get(key, default)
    if not isinstance(value, list | tuple) or not all(
        type(number) is int and number >= 0 for number in value
    ):
        raise InputError(
            f"{label}={value!r:.80} must be a list of whole numbers",
            fix="use the model's own config.json",
        )
    return tuple(value)


def _read_pixel_bounds(file: pathlib.Path) -> dict[str, Any]:
    """Reads the bounds of an image's area.

    Older files have them at the top, newer ones under `size`.
    """
    if not file.is_file():
        return {}
    raw = read_object(file)
    size = raw.get("size")
    if not isinstance(size, dict):
        size = {}
    bounds = {
        "min_pixels": raw.get("min_pixels", size.get("shortest_edge")),
        "max_pixels": raw.get("max_pixels", size.get("longest_edge")),
    }
    return {name: value for name, value in bounds.items() if value is not None}


def vision_json(vision: VisionConfig, width: int) -> dict[str, Any]:
    """Returns the keys of config.json for a vision tower.

    A text model does not have them; `width` is the decoder's.
    """
    tower = {key: getattr(vision, name) for name, key in _SIZES.items()} | _FIXED
    tower |= {
        "out_hidden_size": width,
        "fullatt_block_indexes": list(vision.full_layers),
        "tokens_per_second": 2,
        "model_type": VL,
    }
    tokens = {key: getattr(vision, name) for name, key in _TOKENS.items()}
    return tokens | {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": VL,
        "rope_scaling": {"type": "mrope", "mrope_section": list(vision.sections)},
        "vision_config": tower,
    }


def preprocessor_json(vision: VisionConfig) -> dict[str, Any]:
    """Content of preprocessor_config.json."""
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
