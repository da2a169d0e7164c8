"""SmolLM3: Llama's shape, and one layer in four has no rotary embedding."""

from typing import Any

from gigpo_jax.models.decoder_config import FULL, UNROTATED, DecoderConfig
from gigpo_jax.models.families.family import Family
from gigpo_jax.models.files.json_values import JsonValues


def read_fields(values: JsonValues) -> dict[str, Any]:
    layers = values.size("num_hidden_layers")
    step = values.size("no_rope_layer_interval", 4)
    # In spite of its name the list has 1 for a layer that rotates. It may be longer.
    rotated = values.integers("no_rope_layers")[:layers]
    rotated = rotated or tuple((layer + 1) % step for layer in range(layers))
    return {"layer_types": tuple(FULL if number else UNROTATED for number in rotated)}


def write_keys(config: DecoderConfig) -> dict[str, Any]:
    kinds = config.layer_types or (FULL,) * config.num_layers
    return {
        "attention_bias": False,
        "head_dim": config.head_dim,
        "mlp_bias": False,
        "no_rope_layers": [int(kind == FULL) for kind in kinds],
        # The default is a token of the published vocabulary.
        "pad_token_id": None,
        "sliding_window": None,
        "use_sliding_window": False,
    }


FAMILY = Family(
    "SmolLM3",
    "SmolLM3",
    defaults={"rope_theta": 2_000_000.0, "tie_word_embeddings": True},
    read_fields=read_fields,
    write_keys=write_keys,
)
