"""Responses of card games: a JSON object with the action."""

from collections.abc import Sequence

from gigpo_jax.env_bridge.actions import Response

_KEY = '"action":'


def parse_card_response(response: str, *, actions: Sequence[str]) -> Response:
    """Reads a response; never raises.

    Source: the projection of the published GiGPO experiments. The text after the first `"action":`
    counts, in lower case; without it, the last character alone. Valid means that it contains
    exactly one of the actions ("10" does not contain "1"); else the action is "", which does
    nothing.
    """
    text = response.lower()
    start = text.find(_KEY)
    # As published: without the key the last character may still be a symbol.
    answer = text[start + len(_KEY) :] if start >= 0 else text[-1:]
    matches = set()
    # Taken out first, because "10" contains the action "1".
    if "10" in actions and "10" in answer:
        matches.add("10")
        answer = answer.replace("10", "")
    matches.update(action for action in actions if action in answer)
    if len(matches) != 1:
        return Response("", False)
    return Response(matches.pop(), True)


def write(action: str) -> str:
    """Writes a response without a thought for `parse_card_response`."""
    return f'{{"thoughts": "", "action": "{action}"}}'
