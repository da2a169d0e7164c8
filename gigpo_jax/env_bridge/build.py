"""Calls what "module:NAME" names: the bridge knows environments only so."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

from gigpo_jax.errors import InputError, nearest
from gigpo_jax.references import load


def build(reference: str, options: Mapping[str, Any], *, key: str = "config.env.options") -> Any:
    """Calls the object that "module:NAME" names with options as keyword arguments; `key` is where the user set them.

    An error about an option that begins with its own name, such as `size='huge': ..`, gets the key before it.

    Raises:
      InputError: as `load`; the object does not take these options, or rejects a value.
    """
    function = load(reference, key="config.env.name")
    signature = inspect.signature(function)
    try:
        signature.bind(**options)
    except TypeError as err:
        known = [name for name in signature.parameters if name not in options]
        near = [other for name in options if name not in signature.parameters for other in nearest(name, known)]
        fix = f"nearest: {', '.join(near)}" if near else f"it takes {', '.join(signature.parameters) or 'none'}"
        raise InputError(f"{key}: {reference} does not take the options {sorted(options)} ({err}); {fix}") from err
    try:
        return function(**options)
    except InputError as err:
        named = re.match(r"(\w+)[.\w]*=", str(err))
        if named and named[1] in options:
            raise InputError(f"{key}.{err}") from err
        raise
