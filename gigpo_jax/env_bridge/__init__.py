"""The contract between text environments and a policy: standard library and numpy, never jax."""
