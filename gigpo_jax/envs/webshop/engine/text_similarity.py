"""The text similarity of rewards: token_set_ratio of thefuzz 0.19, over difflib."""

import functools
import re
from difflib import SequenceMatcher

_DROPPED = re.compile("[\u0080-\u00ff]")
_NOT_WORD = re.compile(r"\W")


def normalise(text: str) -> str:
    return _NOT_WORD.sub(" ", _DROPPED.sub("", text)).lower().strip()


def _ratio(first: str, second: str) -> int:
    if first == second:
        return 100
    if not first or not second:
        return 0
    return round(100 * SequenceMatcher(None, first, second).ratio())


@functools.lru_cache(maxsize=4096)
def token_set_ratio(first: str, second: str) -> int:
    """The similarity of two texts as sets of words, 0 to 100.

    The largest of three ratios: the shared words with all words of each text, and the latter with each other.
    """
    one, two = normalise(first), normalise(second)
    if not one or not two:
        return 0
    words_one, words_two = set(one.split()), set(two.split())
    shared = " ".join(sorted(words_one & words_two))
    with_one = f"{shared} {' '.join(sorted(words_one - words_two))}".strip()
    with_two = f"{shared} {' '.join(sorted(words_two - words_one))}".strip()
    return max(_ratio(shared, with_one), _ratio(shared, with_two), _ratio(with_one, with_two))
