"""The configuration of a run: the table of keys, their resolution and check, and the command line."""

from gigpo_jax.config.resolve import default_config, resolve

__all__ = ["default_config", "resolve"]
