"""A maze for gigpo_jax: a package of its own to copy from."""
