"""Response text -> action for the environment, and whether the response kept to the format."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_CHINESE = re.compile("[\u4e00-\u9fff]")
# ASCII: without it, IGNORECASE would also accept letters such as the long s.
_OPEN = re.compile("<action>", re.ASCII | re.IGNORECASE)
_CLOSE = re.compile("</action>", re.ASCII | re.IGNORECASE)
_PLACEHOLDER = re.compile(r"<your [^<>]+>")


@dataclass(frozen=True)
class Response:
    """A parsed response.

    Attributes:
      action: Action for the environment.
      valid: Whether the response kept to the format; the action of an invalid one is played too,
        with a penalty.
      thought: Text before the action, where the next prompts show it.
      plan: Plan that the response states (`plans`), "" if it states none.
    """

    action: str
    valid: bool
    thought: str = ""
    plan: str = ""


def parse_tagged(response: str, *, fallback_chars: int = 30, keeps_case: bool = False) -> Response:
    """Reads `<think> .. </think><action> .. </action>`; never raises.

    The action is the text between the first `<action>` and the first `</action>`, stripped, in
    lower case unless `keeps_case`; without such a pair, the last `fallback_chars` characters of the
    response. Action tags may be in any case, think tags may not. Valid means an action pair, both
    think tags, and no Chinese character (U+4E00 to U+9FFF).

    Source: GiGPO (arXiv 2505.10978), the settings of its ALFWorld and WebShop experiments.
    """
    change_case = str if keeps_case else str.lower
    start = _OPEN.search(response)
    end = _CLOSE.search(response)
    if start is None or end is None or end.start() < start.end():
        # Not [-fallback_chars:], which is everything for 0.
        tail = response[max(0, len(response) - fallback_chars) :]
        return Response(change_case(tail), False)
    action = change_case(response[start.end() : end.start()].strip())
    # Only their presence counts, as in the published settings: order and place do not.
    has_thought = "<think>" in response and "</think>" in response
    return Response(action, has_thought and _CHINESE.search(response) is None)


def is_admissible(action: str, admissible: Sequence[str] | None) -> bool | None:
    """Returns whether the environment listed an action; None without a list.

    An entry such as `search[<your query>]` matches every `search[..]` with text in place of the
    placeholder.
    """
    if admissible is None:
        return None
    if action in admissible:
        return True
    return any(_matches_placeholder(action, entry) for entry in admissible)


def _matches_placeholder(action: str, entry: str) -> bool:
    placeholder = _PLACEHOLDER.search(entry)
    if placeholder is None:
        return False
    prefix = entry[: placeholder.start()]
    suffix = entry[placeholder.end() :]
    # The length check refuses an empty text and a prefix that overlaps the suffix.
    return (
        len(action) > len(prefix) + len(suffix)
        and action.startswith(prefix)
        and action.endswith(suffix)
    )


def response_text(action: str) -> str:
    """Writes a response in the environments' format, without a thought."""
    return f"<think></think><action>{action}</action>"
