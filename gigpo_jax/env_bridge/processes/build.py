"""Builds objects from "module:NAME": the bridge names environments only in this way."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.references import load_reference


def build_object(
    reference: str, options: Mapping[str, Any], *, key: str = "config.env.options"
) -> Any:
    """Calls the builder that "module:NAME" names, and puts `key` before an option in its errors.

    Args:
      reference: Builder, "module:NAME", or "module:NAME:TEXT" with its first argument.
      options: Keyword arguments of the builder.
      key: Key with which the user set the options, for messages.

    Raises:
      InputError: The reference is wrong, or the builder refuses an option or its value.
    """
    parts = reference.split(":", 2)
    builder = partial(load_reference(":".join(parts[:2]), key="config.env.name"), *parts[2:])
    signature = inspect.signature(builder)
    try:
        # Checked before the call: a TypeError of the builder's own code is a bug, and keeps its
        # traceback.
        signature.bind(**options)
    except TypeError as err:
        from gigpo_jax.env_bridge.processes.unknown_options import suggest_options

        fix = suggest_options(signature, options)
        raise InputError(
            f"{reference} does not take the options {sorted(options)} ({err})", key=key, fix=fix
        ) from err
    try:
        return builder(**options)
    except InputError as err:
        # An environment knows its option as `size`; the user set it as `config.env.options.size`.
        if err.key.partition(".")[0] in signature.parameters:
            raise err.with_key(f"{key}.{err.key}") from err
        raise
