"""The text similarity of rewards: token_set_ratio of thefuzz 0.19, over difflib."""

import functools
import re
from difflib import SequenceMatcher

_DROPPED = re.compile("[\u0080-\u00ff]")
_NOT_WORD = re.compile(r"\W")


def normalise_text(text: str) -> str:
    """Returns a text as thefuzz compares it, in lower case.

    U+0080 to U+00FF are dropped, and other characters that are no word characters become blanks.
    """
    return _NOT_WORD.sub(" ", _DROPPED.sub("", text)).lower().strip()


def _similarity(first: str, second: str) -> int:
    if first == second:
        return 100
    if not first or not second:
        return 0
    # difflib, although slow: other libraries give other integers for many pairs, and the reward
    # compares them with a threshold.
    return round(100 * SequenceMatcher(None, first, second).ratio())


@functools.lru_cache(maxsize=4096)
def token_set_ratio(first: str, second: str) -> int:
    """Compares two texts as sets of words: 0 to 100, the largest of three ratios.

    They compare the shared words with all words of the first text, the shared words with all words
    of the second, and all words of both texts with each other.
    """
    first_text = normalise_text(first)
    second_text = normalise_text(second)
    if not first_text or not second_text:
        return 0
    first_words = set(first_text.split())
    second_words = set(second_text.split())
    shared = " ".join(sorted(first_words & second_words))
    first_all = f"{shared} {' '.join(sorted(first_words - second_words))}".strip()
    second_all = f"{shared} {' '.join(sorted(second_words - first_words))}".strip()
    return max(
        _similarity(shared, first_all),
        _similarity(shared, second_all),
        _similarity(first_all, second_all),
    )
