"""The decoder's part of a multimodal config.json."""

import pathlib
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.families.family import TEXT_PARTS
from gigpo_jax.models.files.json_values import FIX


def text_config(raw: dict[str, Any], file: pathlib.Path) -> dict[str, Any]:
    """Reduces a multimodal model's config.json to the config.json of its decoder."""
    text = raw.get("text_config")
    if not isinstance(text, dict):
        raise InputError(f"text_config={text!r:.80} must be an object", key=file, fix=FIX)
    # Of the whole model, where the two differ.
    whole = {key: raw[key] for key in ("tie_word_embeddings",) if key in raw}
    return raw | text | whole | {"model_type": TEXT_PARTS[raw["model_type"]]}
