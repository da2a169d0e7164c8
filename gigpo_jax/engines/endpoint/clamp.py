"""`serve.clamp`: settings of requests that give way to the settings of the run.

Agents that are not changed send limits, temperatures and model names of their own. Without this
option such requests are refused.
"""

import logging
from collections.abc import Mapping
from typing import Any

from gigpo_jax.engines.base import SamplingParams

# Fields that a session has from the run, and their values without effect on any call.
_SAMPLING = ("temperature", "top_p", "top_k")
_DROPPED = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True,),
}
_LIMITS = ("max_tokens", "max_completion_tokens")

log = logging.getLogger(__name__)


class Clamp:
    """Changes requests to what the endpoint can do; reports each field once."""

    def __init__(self, model: str) -> None:
        """Has reported nothing yet; `model` is the name of the policy."""
        self._model = model
        self._reported: set[str] = set()

    def __call__(
        self, body: Mapping[str, Any], base: SamplingParams, *, recorded: bool
    ) -> dict[str, Any]:
        """Returns the body of a chat with its fields clamped.

        Args:
          body: Body of /v1/chat/completions or /v1/completions.
          base: Sampling settings of the run.
          recorded: Whether the call belongs to a session, which has the run's settings.
        """
        changes: dict[str, Any] = {"model": self._model}
        if recorded:
            changes |= {name: getattr(base, name) for name in _SAMPLING} | {"seed": None}
        for name in _LIMITS:
            value = body.get(name)
            if type(value) is int and not 1 <= value <= base.max_tokens:
                changes[name] = base.max_tokens
        for name, neutral_values in _DROPPED.items():
            if body.get(name) not in neutral_values:
                changes[name] = None
        clamped = dict(body)
        for name, value in changes.items():
            if body.get(name) is not None and body[name] != value:
                self._report(name, body[name], value)
                clamped[name] = value
        return clamped

    def _report(self, name: str, value: Any, replacement: Any) -> None:
        if name in self._reported:
            return
        self._reported.add(name)
        change = "left out" if replacement is None else f"{replacement!r} instead"
        log.warning("serve.clamp: a request has %s=%.80r; %s", name, value, change)
