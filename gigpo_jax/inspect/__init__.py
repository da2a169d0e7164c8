"""Shows a run as one HTML file: `python -m gigpo_jax.inspect RUN [RUN]` (docs/inspect.md)."""
