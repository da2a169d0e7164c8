"""Word segmentation as in Lucene's StandardTokenizer (8.11).

The rules are from Unicode Standard Annex 29 for Unicode 9.0, with the tokenizer's own choices:
Thai, Lao, Khmer and Myanmar runs stay whole, a Han or Hiragana character is a word of its own,
emoji sequences are words (Unicode Technical Standard 51, version 11), and no word is longer than
255 UTF-16 units.

Every character is translated to the letter of its class (`word_classes.json` has the classes of all
code points). Regular expressions over these letters find the spans of the words.
"""

import bisect
import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

MAX_WORD = 255  # UTF-16 units: the tokenizer's buffer; a longer word is cut, its rest is a new word
_STARTS = [
    "aletter",
    "hebrewletter",
    "numeric",
    "katakana",
    "extendnumlet",
    "emoji",
    "base",
    "modifier",
    "keybase",
    "regionalindicator",
    "complex",
    "han",
    "hiragana",
    "zwj",
]
_LONG_RUN = re.compile(r"[^ \n]{128}")


class _Classes(dict[int, str]):
    """Code point -> class letter, filled on demand by `str.translate`."""

    def __init__(self) -> None:
        data = json.loads((Path(__file__).parent / "word_classes.json").read_text(encoding="utf-8"))
        self.letters: dict[str, list[str]] = data["classes"]
        # Runs of code points of one class: "distance from the start of the previous run/letter".
        self._run_starts: list[int] = []
        self._run_letters: list[str] = []
        position = 0
        for run in data["runs"].split():
            distance, letter = run.split("/")
            position += int(distance, 16)
            self._run_starts.append(position)
            self._run_letters.append(letter)
        # ASCII at once, as nearly all text is.
        super().__init__((code, self._find_letter(code)) for code in range(128))

    def _find_letter(self, code: int) -> str:
        return self._run_letters[bisect.bisect_right(self._run_starts, code) - 1]

    def __missing__(self, code: int) -> str:
        letter = self._find_letter(code)
        if len(self) < 8192:  # a bound, so that any text keeps a worker small
            self[code] = letter
        return letter

    def select_letters(self, *properties: str, without: tuple[str, ...] = ()) -> str:
        """Returns the letters of classes with one of the properties, for a character class.

        Args:
          properties: Unicode properties, in the words of `word_classes.json`.
          without: Properties that exclude a class.
        """
        selection = ""
        for letter, class_properties in self.letters.items():
            if not set(class_properties).isdisjoint(without):
                continue
            if not set(class_properties).isdisjoint(properties):
                selection += letter
        return selection


@dataclass(frozen=True)
class _Patterns:
    """The class table and the patterns over class letters."""

    classes: _Classes
    token: re.Pattern[str]  # a word, an emoji, or a character that is a word of its own
    word: re.Pattern[str]
    emoji: re.Pattern[str]
    ambiguous: str  # letters that can start both a word and an emoji
    joiners: re.Pattern[str]  # a run of joining and extending characters
    starts: re.Pattern[str]  # a character that can start a token


@functools.cache
def _compile_patterns() -> _Patterns:
    classes = _Classes()

    def any_of(*properties: str, without: tuple[str, ...] = ()) -> str:
        return f"[{classes.select_letters(*properties, without=without)}]"

    extend = f"{any_of('extend', 'format', 'zwj')}*+"

    def extended(*properties: str) -> str:
        return any_of(*properties) + extend

    letter = extended("aletter", "hebrewletter")
    hebrew = extended("hebrewletter")
    numeric = extended("numeric")
    katakana = extended("katakana")
    mid_letter = extended("midletter", "midnumlet", "singlequote")
    mid_number = extended("midnum", "midnumlet", "singlequote")
    joiner = f"(?:{extended('extendnumlet')})"
    single_quote = extended("singlequote")
    double_quote = extended("doublequote")
    # Possessive quantifiers (*+, ++): a long text without a match must not take quadratic time.
    core = (
        f"(?:{katakana}(?:{joiner}*+{katakana})*"
        f"|(?:{hebrew}(?:{single_quote}|{double_quote}{hebrew})"
        f"|{numeric}(?:(?:{joiner}*+|{mid_number}){numeric})*"
        f"|{letter}(?:(?:{joiner}*+|{mid_letter}){letter})*)+)"
    )
    word = f"{joiner}*+{core}(?:{joiner}++{core})*{joiner}*+"

    zwj = any_of("zwj")
    selectors = ("textsel", "emojisel")
    mark = any_of("extend", "format", without=selectors)
    any_mark = f"{any_of('extend', 'format', 'zwj', without=selectors)}*+"
    # A joiner is a mark only if no picture follows it.
    trailing = f"(?:{mark}|{zwj}(?!{zwj}*+{any_of('emoji', 'modifier')}))*+"
    element = (
        f"(?:(?:{zwj}*+{any_of('base')}{any_mark})?{any_of('modifier')}{trailing}"
        f"|{zwj}*+{any_of('emoji')}{trailing}{any_of('emojisel')}?)"
    )
    keycap = f"{any_of('keybase')}{any_mark}{any_of('emojisel')}?{any_of('keycap')}{any_mark}"
    flag = f"(?:{extended('regionalindicator')}){{2}}"
    emoji = f"(?:{element}(?:{zwj}{element})*|{keycap}|{flag})"

    single_word = extended("han", "hiragana")
    letters = set(classes.select_letters("aletter"))
    pictures = set(classes.select_letters("emoji", "base", "modifier"))
    return _Patterns(
        classes=classes,
        token=re.compile(f"{word}|{emoji}|(?:{extended('complex')})+|{single_word}"),
        word=re.compile(word),
        emoji=re.compile(emoji),
        ambiguous="".join(sorted(letters & pictures)),
        joiners=re.compile(f"{any_of('extendnumlet', 'extend', 'format', 'zwj')}*+"),
        starts=re.compile(any_of(*_STARTS)),
    )


def segment_words(text: str) -> list[str]:
    """Splits a text of any length into words, in order, with their case."""
    patterns = _compile_patterns()
    letters = text.translate(patterns.classes)
    # 128 characters may be 256 UTF-16 units. One pattern suffices for all other texts.
    if _LONG_RUN.search(text) or any(letter in letters for letter in patterns.ambiguous):
        return _split_slowly(text, letters, patterns)
    return [text[match.start() : match.end()] for match in patterns.token.finditer(letters)]


def _split_slowly(text: str, letters: str, patterns: _Patterns) -> list[str]:
    """Splits a text that the plain search could split wrongly.

    Such a text has a word at the length limit, or a character that starts both a word and an emoji:
    the longer of the two matches counts there.
    """
    words: list[str] = []
    position = 0
    while (candidate := patterns.starts.search(letters, position)) is not None:
        start = candidate.start()
        # The tokenizer's buffer begins with the word, so the limit moves along with it.
        limit = _find_buffer_end(text, start)
        matches = [patterns.token.match(letters, start, limit)]
        if letters[start] in patterns.ambiguous:
            matches.append(patterns.word.match(letters, start, limit))
            matches.append(patterns.emoji.match(letters, start, limit))
        ends = [match.end() for match in matches if match is not None]
        if ends:
            position = max(ends)
            words.append(text[start:position])
        else:
            joiners = patterns.joiners.match(letters, start)
            end = joiners.end() if joiners else start
            position = max(start + 1, end - MAX_WORD)  # no word starts in a buffer of underscores
    return words


def _find_buffer_end(text: str, start: int) -> int:
    """Returns the end of the tokenizer's buffer of `MAX_WORD` UTF-16 units from a position."""
    window = text[start : start + MAX_WORD]
    if window.isascii() or max(window) <= "\uffff":
        return start + len(window)
    end = start
    units = 0
    for character in window:
        units += 2 if ord(character) > 0xFFFF else 1
        if units > MAX_WORD:
            break
        end += 1
    return end
