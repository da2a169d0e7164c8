"""Text environments, and what stands between them and a policy. Standard library and numpy only; never jax."""
