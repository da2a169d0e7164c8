"""The compact prompts of ALFWorld, for tiny models."""

import re
from functools import lru_cache

from gigpo_jax.env_bridge.prompts import Compact

_HEADER = re.compile(r"-= .*? =-\s*")
_TASK = re.compile(r"\s*Your task is to:.*", re.DOTALL)
_WORD = re.compile(r"[^\s.,:]+")
_FILLER_WORD = re.compile("a|an|the|you|and|it|is|are|in|looking|quickly|around|see")


@lru_cache(maxsize=16384)
def shorten(text: str) -> str:
    """Shortens ALFWorld's feedback; different feedbacks stay different.

    Example: "You arrive at desk 1. On the desk 1, you see a mug 2." -> "arrive at desk 1 on desk 1
    mug 2". The task is left out, as the prompt has it already.
    """
    text = _TASK.sub("", _HEADER.sub("", text, count=1))
    words = _WORD.findall(text.lower())
    return " ".join(word for word in words if not _FILLER_WORD.fullmatch(word))


COMPACT = Compact(
    shorten=shorten,
    hidden=lambda action: action.startswith(("examine", "help", "inventory", "look")),
)
