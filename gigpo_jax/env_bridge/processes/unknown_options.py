"""Suggestions for options that a builder does not take."""

import inspect
from collections.abc import Mapping
from typing import Any

from gigpo_jax.core.spelling import nearest_names


def suggest_options(signature: inspect.Signature, options: Mapping[str, Any]) -> str:
    """The parameters nearest to unknown options; without any, all parameters."""
    unused_names = [name for name in signature.parameters if name not in options]
    suggestions: list[str] = []
    for name in options:
        if name not in signature.parameters:
            suggestions += nearest_names(name, unused_names)
    if suggestions:
        return f"nearest: {', '.join(suggestions)}"
    return f"it takes {', '.join(signature.parameters) or 'none'}"
