"""Objects by reference: "module:NAME" names what a process imports and calls. The bridge knows environments only so."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from gigpo_jax.errors import InputError


def load(reference: str) -> Any:
    """Imports the object that "module:NAME" names; raises InputError if there is none."""
    module, _, attribute = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as err:
        raise InputError(f"env.name: cannot load {reference} ({err})") from err


def build(reference: str, options: Mapping[str, Any], *, key: str = "env.options") -> Any:
    """Calls the object that "module:NAME" names with options as keyword arguments; `key` is where the user set them.

    Raises:
      InputError: as `load`; the object does not take these options, or rejects a value.
    """
    function = load(reference)
    try:
        inspect.signature(function).bind(**options)
    except TypeError as err:
        raise InputError(f"{key}: {reference} does not take the options {sorted(options)} ({err})") from err
    return function(**options)
