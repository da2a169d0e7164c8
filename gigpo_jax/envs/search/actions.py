"""Response text -> `<search>query</search>` or `<answer>text</answer>`: the action keeps its tag."""

import re

from gigpo_jax.env_bridge.actions import Response

_CLOSING = re.compile(r"</(?:search|answer)>", re.IGNORECASE)
_OPENING = re.compile(r"<(search|answer)>", re.IGNORECASE)
_PAIR = {name: re.compile(rf"<{name}>(.*?)</{name}>", re.IGNORECASE | re.DOTALL) for name in ("search", "answer")}


def parse(response: str) -> Response:
    """Reads a response; never raises.

    What comes after the first closing tag is cut off. Of the rest the first `<search>` pair counts, or else the first
    `<answer>` pair, or else there is no action ("").

    Args:
      response: whatever the policy wrote; `<think>` is not required.

    Returns:
      The action with its tags in lower case and its text stripped; invalid if there is none, if the response opens both
      tags, or one of them twice. An invalid search still runs.

    Source: the projection of the published search experiments (arXiv 2505.10978, section 5.3).
    """
    closing = _CLOSING.search(response)
    kept = response[: closing.end()] if closing else response
    opened = [match.lower() for match in _OPENING.findall(response)]
    for name, pair in _PAIR.items():
        found = pair.search(kept)
        if found is not None:
            return Response(f"<{name}>{found.group(1).strip()}</{name}>", len(opened) == 1)
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
