"""Qwen3: a norm over each head of queries and keys, whose scale the heads of a layer share."""

from typing import Any

from gigpo_jax.models.decoder_config import DecoderConfig
from gigpo_jax.models.families.family import Family, without_windows


def write_keys(config: DecoderConfig) -> dict[str, Any]:
    # Readers do not derive it from the width.
    return without_windows(config) | {"head_dim": config.head_dim}


FAMILY = Family("Qwen3", "Qwen3", head_norms=True, write_keys=write_keys)
