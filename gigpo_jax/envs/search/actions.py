"""Response text -> `<search>query</search>` or `<answer>text</answer>`: the action keeps its tag."""

import re

from gigpo_jax.env_bridge.actions import Response

_CLOSING = re.compile(r"</(search|answer)>", re.IGNORECASE)
_OPENING = re.compile(r"<(search|answer)>", re.IGNORECASE)


def parse(response: str) -> Response:
    """Reads a response in linear time; never raises. Source: the projection of arXiv 2505.10978, section 5.3.

    The action ends at the first closing tag. It begins at the first opening tag of the same name before that. Without
    such a pair there is no action ("").

    Returns:
      The action with its tags in lower case and its text stripped; invalid if there is none, if the response opens both
      tags, or one of them twice. An invalid search still runs.
    """
    closing, opened = _CLOSING.search(response), list(_OPENING.finditer(response))
    if closing is not None:
        name = closing[1].lower()
        for opening in opened:
            if opening[1].lower() == name and opening.end() <= closing.start():
                return Response(
                    f"<{name}>{response[opening.end() : closing.start()].strip()}</{name}>", len(opened) == 1
                )
    return Response("", False)


def split_action(action: str) -> tuple[str, str]:
    """An action's kind and its text: ("search", query), ("answer", text) or ("", "") for anything else."""
    for name in ("search", "answer"):
        start, end = f"<{name}>", f"</{name}>"
        if action.startswith(start) and action.endswith(end) and len(action) >= len(start) + len(end):
            return name, action[len(start) : -len(end)].strip()
    return "", ""


def write_action(action: str) -> str:
    """The response that `parse` reads as this action, without a thought."""
    return f"<think></think>{action}"
