"""Objects by reference: "module:NAME" names what a process imports."""

import importlib
from collections.abc import Mapping
from typing import Any, TypeVar

from gigpo_jax.errors import InputError, nearest

_T = TypeVar("_T")


def load(reference: str, *, key: str) -> Any:
    """Imports the object that "module:NAME" names; raises InputError with the config key if there is none."""
    module, _, attribute = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as err:
        raise InputError(f"{key}: cannot load {reference} ({err})") from err


def find(name: str, known: Mapping[str, _T], kind: type[_T], *, key: str) -> _T:
    """The entry of a table, or the object of the same type that "module:NAME" names.

    Raises:
      InputError: with the config key; there is none of that name, and the known ones are listed; or of another type.
    """
    if name in known:
        return known[name]
    if ":" not in name:
        near = nearest(name, known)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"{key}={name!r}: unknown; {hint}known are {', '.join(known)}, or module:NAME")
    found = load(name, key=key)
    if not isinstance(found, kind):
        wanted = f"{kind.__module__}.{kind.__name__}"
        raise InputError(f"{key}={name!r}: that is of type {type(found).__name__}, not {wanted}")
    return found
