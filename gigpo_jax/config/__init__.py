"""The configuration of a run: table of keys, resolution, checks, command line."""

from gigpo_jax.config.resolve import default_config, resolve

__all__ = ["default_config", "resolve"]
