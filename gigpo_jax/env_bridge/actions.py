"""Response text -> action for the environment, and whether the response kept to the format."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_CHINESE = re.compile("[\u4e00-\u9fff]")
_OPEN, _CLOSE = (re.compile(tag, re.ASCII | re.IGNORECASE) for tag in ("<action>", "</action>"))
_PLACEHOLDER = re.compile(r"<your [^<>]+>")


@dataclass(frozen=True)
class Response:
    """A parsed response.

    Attributes:
      action: what the environment gets.
      valid: whether the response kept to the format; the action of an invalid one is played too, with a penalty.
      thought: what came before the action, where the next prompts show it.
    """

    action: str
    valid: bool
    thought: str = ""


def parse_tagged(response: str, *, fallback_chars: int = 30) -> Response:
    """Reads `<think> .. </think><action> .. </action>`; never raises.

    The action is the text between the first `<action>` and the first `</action>`, stripped, in lower case; without such
    a pair, the last `fallback_chars` characters of the response. Action tags may be in any case, think tags may not.
    Valid means an action pair, both think tags, and no Chinese character (U+4E00 to U+9FFF).

    Source: GiGPO (arXiv 2505.10978), the settings of its ALFWorld and WebShop experiments.
    """
    start, end = _OPEN.search(response), _CLOSE.search(response)
    if start is None or end is None or end.start() < start.end():
        return Response(response[-fallback_chars:].lower(), False)
    action = response[start.end() : end.start()].strip().lower()
    thought = "<think>" in response and "</think>" in response
    return Response(action, thought and _CHINESE.search(response) is None)


def is_admissible(action: str, admissible: Sequence[str] | None) -> bool | None:
    """Whether an action is one of those the environment listed; None if it gave no list.

    An entry such as `search[<your query>]` matches every `search[..]` with text in the place of the placeholder.
    """
    if admissible is None:
        return None
    if action in admissible:
        return True
    for entry in admissible:
        hole = _PLACEHOLDER.search(entry)
        if hole is None:
            continue
        before, after = entry[: hole.start()], entry[hole.end() :]
        if len(action) > len(before) + len(after) and action.startswith(before) and action.endswith(after):
            return True
    return False
