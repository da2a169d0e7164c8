"""Conditions on single keys, which raise an InputError with key, value and fix."""

from ml_collections import ConfigDict

from gigpo_jax.config.keys import is_default, value_of
from gigpo_jax.core.errors import InputError


def require(holds: bool, config: ConfigDict, name: str, reason: str, fix: str = "") -> None:
    """Raises an InputError about a key unless the condition holds."""
    if not holds:
        value = repr(value_of(config, name))
        raise InputError(reason, key=f"config.{name}", value=value, fix=fix)


def require_default(config: ConfigDict, name: str, reader: str) -> None:
    """Raises an InputError for a set key that has an effect with another setting only."""
    # Its value and not its presence: a resolved config has every key.
    require(is_default(config, name), config, name, f"not read by {reader}", "leave it out")
