"""Index terms as in Lucene's English analysis.

Words (`word_segmentation.py`) without possessive 's, in lower case, without 33 stop words, stemmed by Porter's stemmer
(1980) with the two later changes of its author (-bli and -logi); as in Lucene, words of one or two letters are not
stemmed.
"""

import functools
import itertools

from gigpo_jax.envs.webshop.search.word_segmentation import words


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


STOP_WORDS = frozenset(
    _words(
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these "
        "they this to was will with"
    )
)
_APOSTROPHES = "'\u2019\uff07"

_STEP_2 = {
    "a": (("ational", "ate"), ("tional", "tion")),
    "c": (("enci", "ence"), ("anci", "ance")),
    "e": (("izer", "ize"),),
    "l": (("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous")),
    "o": (("ization", "ize"), ("ation", "ate"), ("ator", "ate")),
    "s": (("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous")),
    "t": (("aliti", "al"), ("iviti", "ive"), ("biliti", "ble")),
    "g": (("logi", "log"),),
}
_STEP_3 = {
    "e": (("icate", "ic"), ("ative", ""), ("alize", "al")),
    "i": (("iciti", "ic"),),
    "l": (("ical", "ic"), ("ful", "")),
    "s": (("ness", ""),),
}
_STEP_4 = {
    "a": ("al",),
    "c": ("ance", "ence"),
    "e": ("er",),
    "i": ("ic",),
    "l": ("able", "ible"),
    "n": ("ant", "ement", "ment", "ent"),
    "o": ("sion", "tion", "ou"),  # -ion after s or t; -ou
    "s": ("ism",),
    "t": ("ate", "iti"),
    "u": ("ous",),
    "v": ("ive",),
    "z": ("ize",),
}


def _consonants(word: str) -> list[bool]:
    """Which letters are consonants; a y is one at the start and after a vowel."""
    out: list[bool] = []
    for letter in word:
        if letter in "aeiou":
            out.append(False)
        elif letter == "y":
            out.append(not out or not out[-1])
        else:
            out.append(True)
    return out


def _measure(stem: str) -> int:
    """How many times a run of vowels is followed by a run of consonants."""
    kinds = _consonants(stem)
    return sum(not a and b for a, b in itertools.pairwise(kinds))


def _has_vowel(stem: str) -> bool:
    return not all(_consonants(stem))


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _consonants(word)[-1]


def _ends_cvc(word: str) -> bool:
    """Whether it ends in consonant, vowel, consonant other than w, x, y: an e was dropped (hop-ing, hope)."""
    return len(word) > 2 and _consonants(word)[-3:] == [True, False, True] and word[-1] not in "wxy"


def _step_1(word: str) -> str:
    """Plurals, -ed and -ing, and a final y after a vowel somewhere before it."""
    if word.endswith("s"):
        if word.endswith(("sses", "ies")):
            word = word[:-2]
        elif not word.endswith("ss"):
            word = word[:-1]
    if word.endswith("eed"):
        if _measure(word[:-3]) > 0:
            word = word[:-1]
    else:
        cut = 2 if word.endswith("ed") else 3 if word.endswith("ing") else 0
        if cut and _has_vowel(word[:-cut]):
            word = word[:-cut]
            if word.endswith(("at", "bl", "iz")):
                word += "e"
            elif _ends_double(word):
                if word[-1] not in "lsz":
                    word = word[:-1]
            elif _measure(word) == 1 and _ends_cvc(word):
                word += "e"
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    return word


def _replace(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    """Applies the first rule whose suffix fits, if the stem before it has a measure above 0."""
    for suffix, replacement in rules:
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            return stem + replacement if _measure(stem) > 0 else word
    return word


def _step_4(word: str) -> str:
    """Drops a suffix if the stem before it has a measure above 1."""
    for suffix in _STEP_4.get(word[-2:-1], ()):
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            if suffix in ("sion", "tion"):
                stem = word[:-3]
            return stem if _measure(stem) > 1 else word
    return word


def _step_5(word: str) -> str:
    """A final e, and one of two final l."""
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _ends_cvc(word[:-1])):
            word = word[:-1]
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word


def _units(word: str) -> str:
    data = word.encode("utf-16-le", "surrogatepass")
    return "".join(chr(int.from_bytes(data[i : i + 2], "little")) for i in range(0, len(data), 2))


def stem(word: str) -> str:
    """The stem of a lower-case word."""
    astral = any(ord(letter) > 0xFFFF for letter in word)
    if astral:
        word = _units(word)
    if len(word) > 2:
        word = _step_1(word)
        if len(word) > 1:
            word = _replace(word, _STEP_2.get(word[-2], ()))
            word = _replace(word, _STEP_3.get(word[-1], ()))
            word = _step_5(_step_4(word))
    return word.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass") if astral else word


def analyse_word(word: str) -> str:
    """The index term of a word; empty for a stop word."""
    if len(word) > 1 and word[-1] in "sS" and word[-2] in _APOSTROPHES:
        word = word[:-2]
    word = "".join(lowered if len(lowered := letter.lower()) == 1 else letter for letter in word)
    return "" if word in STOP_WORDS else stem(word)


_cached = functools.lru_cache(maxsize=4096)(analyse_word)


def terms(text: str) -> list[str]:
    """The index terms of a text, in order, with repeats."""
    return [term for word in words(text) if (term := _cached(word))]
