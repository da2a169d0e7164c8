"""Compares finished runs on the same panel: `python -m gigpo_jax.compare RUN RUN ...` (docs/compare.md)."""
