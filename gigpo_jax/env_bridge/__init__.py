"""What stands between text environments and a policy. Standard library and numpy only; never jax."""
