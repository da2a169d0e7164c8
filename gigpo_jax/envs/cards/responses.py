"""Responses of card games: a JSON object with the action."""

from collections.abc import Sequence

from gigpo_jax.env_bridge.actions import Response

_KEY = '"action":'


def parse(response: str, *, actions: Sequence[str]) -> Response:
    """Reads a response; never raises. Source: the projection of the published GiGPO experiments.

    What counts is the text after the first `"action":`, in lower case; without it, the last character alone. Valid
    means that exactly one of the actions is contained in it ("10" does not contain "1"); else the action is "", which
    does nothing.
    """
    text = response.lower()
    start = text.find(_KEY)
    rest = text[start + len(_KEY) :] if start >= 0 else text[-1:]
    found = {name for name in ("10",) if name in actions and name in rest}
    if found:
        rest = rest.replace("10", "")
    found |= {name for name in actions if name in rest}
    return Response(*((found.pop(), True) if len(found) == 1 else ("", False)))


def write(action: str) -> str:
    """The response that `parse` reads as this action, without a thought."""
    return f'{{"thoughts": "", "action": "{action}"}}'
