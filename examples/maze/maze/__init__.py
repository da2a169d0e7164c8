"""A maze for gigpo_jax, in a package of its own: environment, expert, prompts and a panel to copy from."""
