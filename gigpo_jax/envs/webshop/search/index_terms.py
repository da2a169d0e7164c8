"""Index terms as in Lucene's English analysis.

Words (`word_segmentation.py`) without possessive 's, in lower case, without 33 stop words, stemmed
by Porter's stemmer (1980) with the two later changes of its author (-bli and -logi); as in Lucene,
words of one or two letters are not stemmed.
"""

import functools
import itertools

from gigpo_jax.envs.webshop.search.word_segmentation import segment_words

# fmt: off
STOP_WORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it",
    "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these",
    "they", "this", "to", "was", "will", "with",
))
# fmt: on
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


def _find_consonants(word: str) -> list[bool]:
    """Marks the letters that are consonants; a y is one at the start and after a vowel."""
    consonants: list[bool] = []
    for letter in word:
        if letter in "aeiou":
            consonants.append(False)
        elif letter == "y":
            consonants.append(not consonants or not consonants[-1])
        else:
            consonants.append(True)
    return consonants


def _measure_stem(stem: str) -> int:
    """Returns Porter's m of a stem: how often a run of consonants follows a run of vowels."""
    consonants = _find_consonants(stem)
    return sum(not first and second for first, second in itertools.pairwise(consonants))


def _has_vowel(stem: str) -> bool:
    return not all(_find_consonants(stem))


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _find_consonants(word)[-1]


def _ends_cvc(word: str) -> bool:
    """Whether a word ends in consonant, vowel, and a consonant other than w, x and y.

    Such a word may have lost an e (hop-ing, hope).
    """
    if len(word) < 3 or word[-1] in "wxy":
        return False
    return _find_consonants(word)[-3:] == [True, False, True]


def _step_1(word: str) -> str:
    """Step 1: plurals, -ed and -ing, and a final y with a vowel somewhere before it."""
    word = _drop_plural(word)
    if word.endswith("eed"):
        if _measure_stem(word[:-3]) > 0:
            word = word[:-1]
    elif word.endswith("ed"):
        word = _drop_ending(word, 2)
    elif word.endswith("ing"):
        word = _drop_ending(word, 3)
    # After the endings: "-ying" leaves a y that may change, too.
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    return word


def _drop_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    if word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def _drop_ending(word: str, length: int) -> str:
    """Drops -ed or -ing behind a stem with a vowel, and repairs the stem's end."""
    stem = word[:-length]
    if not _has_vowel(stem):
        return word
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    # hopp-ing -> hop, but fall-ing -> fall.
    if _ends_double(stem):
        return stem if stem[-1] in "lsz" else stem[:-1]
    if _measure_stem(stem) == 1 and _ends_cvc(stem):
        return stem + "e"
    return stem


def _replace_suffix(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    """Applies the first rule whose suffix fits, if the stem before it has a measure above 0."""
    for suffix, replacement in rules:
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            return stem + replacement if _measure_stem(stem) > 0 else word
    return word


def _step_4(word: str) -> str:
    """Step 4: drops a suffix behind a stem with a measure above 1."""
    for suffix in _STEP_4.get(word[-2:-1], ()):
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            # -ion goes only after s or t, which stay.
            if suffix in ("sion", "tion"):
                stem = word[:-3]  # the s or t stays
            return stem if _measure_stem(stem) > 1 else word
    return word


def _step_5(word: str) -> str:
    """Step 5: drops a final e, and shortens a final ll to l."""
    if word.endswith("e"):
        measure = _measure_stem(word[:-1])
        if measure > 1 or (measure == 1 and not _ends_cvc(word[:-1])):
            word = word[:-1]
    if word.endswith("ll") and _measure_stem(word) > 1:
        word = word[:-1]
    return word


def _to_utf16_units(word: str) -> str:
    """Returns a word with each UTF-16 unit as a character: two for one beyond U+FFFF."""
    data = word.encode("utf-16-le", "surrogatepass")
    return "".join(chr(int.from_bytes(data[i : i + 2], "little")) for i in range(0, len(data), 2))


def stem_word(word: str) -> str:
    """The stem of a lower-case word."""
    # Java counts UTF-16 units, and the rules depend on the length.
    has_astral = any(ord(letter) > 0xFFFF for letter in word)
    if has_astral:
        word = _to_utf16_units(word)
    if len(word) > 2:
        word = _step_1(word)
        if len(word) > 1:
            # Rules are grouped by one letter of their suffix, so that a word is tried against few.
            word = _replace_suffix(word, _STEP_2.get(word[-2], ()))
            word = _replace_suffix(word, _STEP_3.get(word[-1], ()))
            word = _step_5(_step_4(word))
    if has_astral:
        word = word.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return word


def analyse_word(word: str) -> str:
    """Returns a word's index term; empty for a stop word."""
    # The order of Lucene's filters: possessive, lower case, stop words, stemmer.
    if len(word) > 1 and word[-1] in "sS" and word[-2] in _APOSTROPHES:
        word = word[:-2]
    lowered = "".join(_lower_letter(letter) for letter in word)
    return "" if lowered in STOP_WORDS else stem_word(lowered)


def _lower_letter(letter: str) -> str:
    """Returns a letter in lower case as Java does: unchanged if that has several characters."""
    lowered = letter.lower()
    return lowered if len(lowered) == 1 else letter


_analyse_cached_word = functools.lru_cache(maxsize=4096)(analyse_word)


def analyse_text(text: str) -> list[str]:
    """The index terms of a text, in order, with repeats."""
    terms = [_analyse_cached_word(word) for word in segment_words(text)]
    return [term for term in terms if term]
