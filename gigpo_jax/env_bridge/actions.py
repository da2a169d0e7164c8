"""Response text -> action: what the model wrote, what is sent to the environment, and whether it kept to the format."""

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
      valid: whether the response kept to the format; an invalid one pays the penalty and is played all the same.
    """

    action: str
    valid: bool


def parse_tagged(response: str, *, fallback_chars: int = 30, require_think: bool = True) -> Response:
    """Reads `<think> .. </think><action> .. </action>`; never raises.

    The action is the text between the first `<action>` and the first `</action>`, stripped, in lower case. A closing
    tag that comes first makes no pair. Action tags may be in any case, think tags may not.

    Args:
      response: whatever the policy wrote.
      fallback_chars: without an action pair so many characters from the end of the response are the action; >= 1.
      require_think: whether a response without `<think>` and `</think>` is invalid.

    Returns:
      The action, and valid = an action pair, both think tags, no Chinese character (U+4E00 to U+9FFF).

    Source: GiGPO (arXiv 2505.10978), the settings of its ALFWorld and WebShop experiments.
    """
    start, end = _OPEN.search(response), _CLOSE.search(response)
    if start is None or end is None or end.start() < start.end():
        return Response(response[-fallback_chars:].lower(), False)
    action = response[start.end() : end.start()].strip().lower()
    thought = not require_think or ("<think>" in response and "</think>" in response)
    return Response(action, thought and _CHINESE.search(response) is None)


def is_admissible(action: str, admissible: Sequence[str] | None) -> bool | None:
    """Whether an action is one of those the environment listed.

    Args:
      action: what is sent to the environment.
      admissible: the environment's list; an entry such as `search[<your query>]` stands for every `search[..]` with
        some text in the place of the placeholder.

    Returns:
      None if the environment gave no list.
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
