"""The shape of a vision tower, read from and written to a folder of Qwen2.5-VL or Qwen3-VL.

Its files are config.json and preprocessor_config.json. Fine-tuned models often keep only the keys
that differ, so missing keys have the values of the published models.
"""

import math
import pathlib
from dataclasses import dataclass, replace
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.files import read_object
from gigpo_jax.models.linear_names import DECODERS

MERGE = 2  # patches along a side of the square that becomes one token
FRAMES = 2  # a kernel covers two frames; a still image is the same frame twice
VL = "qwen2_5_vl"  # model_type
VL3 = "qwen3_vl"
# Mean and standard deviation of each channel, of values from 0 to 1.
NORMALIZATION = {
    VL: ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),  # CLIP
    VL3: ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
# An image in the published chat templates.
IMAGE_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
PREPROCESSOR = "preprocessor_config.json"
_SIZES = {  # field of `VisionConfig` -> key of vision_config
    "depth": "depth",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_heads": "num_heads",
    "patch_size": "patch_size",
}
_OWN_SIZES = {
    VL: {"window_size": "window_size"},
    VL3: {"num_positions": "num_position_embeddings"},
}
_LAYERS = {  # field with indices of layers, and its key
    VL: ("full_layers", "fullatt_block_indexes"),
    VL3: ("deep_layers", "deepstack_visual_indexes"),
}
_CLASSES = {VL: "Qwen2_5_VL", VL3: "Qwen3VL"}  # prefix in transformers
_TOKENS = {  # field -> key of config.json
    "image_token": "image_token_id",
    "start_token": "vision_start_token_id",
    "end_token": "vision_end_token_id",
}
# Values that this code is written for. A folder with another one is refused.
_FIXED = {"spatial_merge_size": MERGE, "temporal_patch_size": FRAMES, "in_channels": 3}
_OWN_FIXED = {
    VL: {"hidden_act": "silu", "patch_size": 14},
    VL3: {"hidden_act": "gelu_pytorch_tanh", "patch_size": 16},
}


@dataclass(frozen=True)
class VisionConfig:
    """The shape of a vision tower and the decoder's image settings, by default Qwen2.5-VL's.

    Attributes:
      model_type: a key of `DECODERS`.
      depth: layers.
      hidden_size: width of the residual stream, W.
      intermediate_size: width inside the SwiGLU block, or Qwen3-VL's MLP.
      num_heads: heads, each W / num_heads wide; a multiple of 4.
      patch_size: pixels along a side of a patch.
      window_size: pixels along a side of a window; 0: attention covers the whole image.
      full_layers: indices of the layers whose attention covers the whole image all the same.
      num_positions: learned positions, of a square grid; 0 for none.
      deep_layers: ascending indices of the layers whose results are features too. They are added
        to the decoder's residual stream after its first layers, one each (DeepStack, arXiv
        2406.04334).
      sections: frequencies of the decoder's rotary embedding that turn with frame, row and column
        (M-RoPE).
      image_token: token id of a place for a feature.
      start_token: token id before an image.
      end_token: token id after an image.
      min_pixels: smallest area; smaller images are enlarged.
      max_pixels: largest area; larger images are reduced.
    """

    model_type: str = VL
    depth: int = 32
    hidden_size: int = 1280
    intermediate_size: int = 3420
    num_heads: int = 16
    patch_size: int = 14
    window_size: int = 112
    full_layers: tuple[int, ...] = (7, 15, 23, 31)
    num_positions: int = 0
    deep_layers: tuple[int, ...] = ()
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
        if math.isqrt(self.num_positions) ** 2 != self.num_positions:
            raise ValueError(f"num_position_embeddings={self.num_positions} must be a square")
        ascending = sorted({*self.deep_layers} & {*range(self.depth)})
        if list(self.deep_layers) != ascending:
            raise ValueError(
                f"deepstack_visual_indexes={list(self.deep_layers)} must be ascending indices of "
                f"{self.depth} layers"
            )

    @property
    def square(self) -> int:
        """Pixels along a side of one token's square."""
        return MERGE * self.patch_size

    @property
    def patch_values(self) -> int:
        """Numbers in a patch of one frame."""
        return 3 * self.patch_size**2

    @property
    def patch_shape(self) -> tuple[int, int, int, int]:
        """Channels, frames, rows and columns of a patch."""
        return 3, FRAMES, self.patch_size, self.patch_size

    @property
    def feature_parts(self) -> int:
        """Vectors of the decoder's width in a feature."""
        return 1 + len(self.deep_layers)

    @property
    def nests_decoder(self) -> bool:
        """Whether published tensors and config.json nest the decoder as `language_model`."""
        return self.model_type == VL3

    @property
    def frequency_axes(self) -> tuple[int, ...]:
        """Axis of positions, 0 to 2, of each decoder frequency."""
        if self.model_type == VL:
            return tuple(axis for axis, size in enumerate(self.sections) for _ in range(size))
        # Frame, row and column take turns; frequencies that are left turn with the frame.
        numbers = range(sum(self.sections))
        return tuple(n % 3 if n < 3 * self.sections[n % 3] else 0 for n in numbers)


# Keys that a folder of Qwen3-VL leaves out: the tower of Qwen3-VL-8B.
QWEN3_VL = VisionConfig(
    model_type=VL3,
    depth=27,
    hidden_size=1152,
    intermediate_size=4304,
    patch_size=16,
    window_size=0,
    full_layers=(),
    num_positions=2304,
    deep_layers=(8, 16, 24),
    sections=(24, 20, 20),
    min_pixels=65536,
    max_pixels=16777216,
)
_DEFAULTS = {VL: VisionConfig(), VL3: QWEN3_VL}


def decoder_json(raw: dict[str, Any]) -> dict[str, Any]:
    """Reduces a vision model's config.json to the config.json of its decoder."""
    # Qwen3-VL and transformers 5 nest the decoder's keys in text_config.
    text = raw.get("text_config")
    model_type = DECODERS[raw["model_type"]]
    flat = (text if isinstance(text, dict) else {}) | raw | {"model_type": model_type}
    for key in ("rope_scaling", "rope_parameters"):
        rope = flat.get(key)
        if isinstance(rope, dict):
            # M-RoPE on text alone is plain rotary embedding.
            flat[key] = {
                name: "default" if value == "mrope" else value for name, value in rope.items()
            }
    return flat


def read_vision(
    model_type: str, raw: dict[str, Any], rope: dict[str, Any], folder: pathlib.Path, width: int
) -> VisionConfig:
    """Reads the vision tower that config.json describes.

    Args:
      model_type: a key of `DECODERS`.
      raw: result of `decoder_json`.
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
    fixed = _FIXED | _OWN_FIXED[model_type] | {"out_hidden_size": width}
    for key, value in fixed.items():
        if tower.get(key, value) != value:
            raise InputError(
                f"vision_config.{key}={tower[key]!r:.80} is not supported",
                key=file,
                fix=f"use the model's own config.json, which has {value}",
            )
    sizes = _SIZES | _OWN_SIZES[model_type]
    fields: dict[str, Any] = {name: tower[key] for name, key in sizes.items() if key in tower}
    fields |= {name: raw[key] for name, key in _TOKENS.items() if key in raw}
    fields |= _read_pixel_bounds(folder / PREPROCESSOR)
    for name, value in fields.items():
        # Not `isinstance`: `true` in JSON is an int of Python too.
        if type(value) is not int or not 0 < value < 2**31:
            key = (sizes | _TOKENS).get(name, name)
            raise InputError(
                f"{key}={value!r:.80} must be a whole number above 0",
                key=folder,
                fix="use the model's own files",
            )
    defaults = _DEFAULTS[model_type]
    layers, key = _LAYERS[model_type]
    fields[layers] = _read_numbers(
        tower, key, getattr(defaults, layers), f"{file}: vision_config.{key}"
    )
    fields["sections"] = _read_numbers(
        rope, "mrope_section", defaults.sections, f"{file}: mrope_section"
    )
    return replace(defaults, **fields)


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
    """Reads the bounds of an image's area, which newer files have under `size`."""
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


def vision_json(vision: VisionConfig, decoder: dict[str, Any]) -> dict[str, Any]:
    """Returns config.json of a model with a tower; `decoder` is the decoder's own config.json."""
    kind = vision.model_type
    layers, key = _LAYERS[kind]
    sizes = _SIZES | _OWN_SIZES[kind]
    tower = {key: getattr(vision, name) for name, key in sizes.items()} | _FIXED | _OWN_FIXED[kind]
    tower |= {
        "out_hidden_size": decoder["hidden_size"],
        key: list(getattr(vision, layers)),
        "model_type": kind,
    }
    content = {key: getattr(vision, name) for name, key in _TOKENS.items()} | {
        "architectures": [f"{_CLASSES[kind]}ForConditionalGeneration"],
        "model_type": kind,
        "vision_config": tower,
    }
    rope: dict[str, Any] = {"mrope_section": list(vision.sections)}
    if vision.nests_decoder:
        rope |= {"mrope_interleaved": True, "rope_type": "default"}
        text = decoder | {"model_type": f"{kind}_text", "rope_scaling": rope}
        del text["architectures"]
        shared = {key: decoder[key] for key in ("tie_word_embeddings", "torch_dtype")}
        return shared | content | {"text_config": text}
    tower["tokens_per_second"] = 2
    return decoder | content | {"rope_scaling": {"type": "mrope"} | rope}


def preprocessor_json(vision: VisionConfig) -> dict[str, Any]:
    """Content of preprocessor_config.json."""
    mean, std = NORMALIZATION[vision.model_type]
    content = {
        "image_mean": list(mean),
        "image_processor_type": "Qwen2VLImageProcessor",
        "image_std": list(std),
        "merge_size": MERGE,
        "patch_size": vision.patch_size,
        "processor_class": f"{_CLASSES[vision.model_type]}Processor",
        "temporal_patch_size": FRAMES,
    }
    if vision.nests_decoder:
        size = {"longest_edge": vision.max_pixels, "shortest_edge": vision.min_pixels}
        return content | {"size": size}
    return content | {"max_pixels": vision.max_pixels, "min_pixels": vision.min_pixels}
