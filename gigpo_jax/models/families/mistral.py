"""Mistral without sliding windows: Llama's shape."""

from gigpo_jax.models.families.family import Family, without_windows

# A missing key is a window of 4096 tokens in transformers.
FAMILY = Family(
    "Mistral",
    "Mistral",
    window_key="sliding_window",
    defaults={"sliding_window": 4096},
    write_keys=without_windows,
)
