"""Qwen2 and Qwen2.5: queries, keys and values have biases."""

from gigpo_jax.models.families.family import Family, without_windows

FAMILY = Family("Qwen2.5", "Qwen2", qkv_biases=True, write_keys=without_windows)
