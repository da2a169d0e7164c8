"""Response text -> `<search>query</search>` or `<answer>text</answer>`, with its tag."""

import re

from gigpo_jax.env_bridge.actions import Response

_CLOSING = re.compile(r"</(search|answer)>", re.IGNORECASE)
_OPENING = re.compile(r"<(search|answer)>", re.IGNORECASE)


def parse_response(response: str) -> Response:
    """Reads a response in linear time; never raises.

    The action ends at the first closing tag. It begins at the first opening tag of the same name
    before that. Without such a pair there is no action ("").

    Source: the projection of arXiv 2505.10978, section 5.3.

    Returns:
      The action with its tags in lower case and its text stripped; invalid if there is none, if the
      response opens both tags, or one of them twice. An invalid search still runs.
    """
    closing = _CLOSING.search(response)
    # Of the whole response: a second tag behind the action makes it invalid, too.
    openings = list(_OPENING.finditer(response))
    if closing is None:
        return Response("", False)
    name = closing[1].lower()
    for opening in openings:
        if opening[1].lower() == name and opening.end() <= closing.start():
            text = response[opening.end() : closing.start()].strip()
            return Response(f"<{name}>{text}</{name}>", len(openings) == 1)
    return Response("", False)


def split_action(action: str) -> tuple[str, str]:
    """Splits an action into its kind and its text.

    Returns:
      ("search", query), ("answer", text), or ("", "") for anything else.
    """
    for name in ("search", "answer"):
        start = f"<{name}>"
        end = f"</{name}>"
        long_enough = len(action) >= len(start) + len(end)
        if long_enough and action.startswith(start) and action.endswith(end):
            return name, action[len(start) : -len(end)].strip()
    return "", ""


def write_response(action: str) -> str:
    """Writes the response, without a thought, that `parse_response` reads as this action."""
    return f"<think></think>{action}"
