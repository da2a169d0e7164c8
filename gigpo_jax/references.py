"""Objects by reference: "module:NAME" names what a process imports."""

import importlib
from typing import Any

from gigpo_jax.errors import InputError


def load(reference: str, *, key: str) -> Any:
    """Imports the object that "module:NAME" names; raises InputError with the config key if there is none."""
    module, _, attribute = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as err:
        raise InputError(f"{key}: cannot load {reference} ({err})") from err
