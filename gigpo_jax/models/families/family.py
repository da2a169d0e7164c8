"""The table of families, and what a family's file says."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gigpo_jax.models.decoder_config import DecoderConfig
    from gigpo_jax.models.files.json_values import JsonValues

# model_type in config.json, and the name of the family's file in this folder
FAMILIES = (
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_5_text",
    "llama",
    "mistral",
    "smollm3",
    "gemma3_text",
)
# model_type of a multimodal config.json -> of its text_config, which alone is read
TEXT_PARTS = {"qwen3_5": "qwen3_5_text"}


@dataclass(frozen=True)
class Family:
    """What the models of a family have that others lack.

    Attributes:
      title: name of the models.
      class_prefix: beginning of the names of its classes in transformers.
      qkv_biases: whether queries, keys and values have biases.
      head_norms: whether there are norms of queries and keys, over each head.
      gated_attention: whether the result of attention is multiplied by a gate, whose kernel is in
        the kernel of queries.
      result_norms: whether the results of attention and of the MLP have norms.
      norm_offset: added to the scale of norms.
      activation: of the MLP's gate, a key of `layers.ACTIVATIONS`.
      scales_embeddings: whether embeddings are multiplied by the root of their width.
      modules: names of modules of a layer in files where others have other names.
      defaults: values of keys that config.json leaves out, where others have other ones.
      read_fields: returns more fields of `DecoderConfig` from config.json.
      write_keys: returns more keys of config.json.
      window_key: key of config.json that says whether layers have sliding windows, which are then
        refused; "": the family has them.
      unsupported: more keys of config.json that must be off.
      ignored_tensors: beginnings of the names of tensors that are not read.
    """

    title: str
    class_prefix: str
    qkv_biases: bool = False
    head_norms: bool = False
    gated_attention: bool = False
    result_norms: bool = False
    norm_offset: float = 0.0
    activation: str = "silu"
    scales_embeddings: bool = False
    modules: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    read_fields: "Callable[[JsonValues], dict[str, Any]]" = lambda values: {}
    write_keys: "Callable[[DecoderConfig], dict[str, Any]]" = lambda config: {}
    window_key: str = "use_sliding_window"
    unsupported: tuple[str, ...] = ()
    ignored_tensors: tuple[str, ...] = ()


def find_family(model_type: str) -> Family:
    """Returns the family of a model type."""
    # Imported by name: a run reads the file of its own family alone.
    return importlib.import_module(f"{__package__}.{model_type}").FAMILY


def without_windows(config: "DecoderConfig") -> dict[str, Any]:
    """Keys of config.json that turn sliding windows off."""
    return {
        "max_window_layers": config.num_layers,
        "sliding_window": None,
        "use_sliding_window": False,
    }
