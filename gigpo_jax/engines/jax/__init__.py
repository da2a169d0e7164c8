"""The in-process JAX engine."""
