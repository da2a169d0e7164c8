"""Word segmentation as in Lucene's StandardTokenizer (8.11).

The rules are those of Unicode Standard Annex 29 for Unicode 9.0, with the tokenizer's own choices: Thai, Lao, Khmer and
Myanmar runs stay whole, a Han or Hiragana character is a word of its own, emoji sequences are words (Unicode Technical
Standard 51, version 11), and no word is longer than 255 UTF-16 units.

Every character is translated to the letter of its class (`word_classes.json` has the classes of all code points).
Regular expressions over these letters find the spans of the words.
"""

import bisect
import functools
import json
import re
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
        self._starts: list[int] = []
        self._letter: list[str] = []
        position = 0
        for run in data["runs"].split():
            delta, letter = run.split("/")
            position += int(delta, 16)
            self._starts.append(position)
            self._letter.append(letter)
        super().__init__((code, self._find(code)) for code in range(128))

    def _find(self, code: int) -> str:
        return self._letter[bisect.bisect_right(self._starts, code) - 1]

    def __missing__(self, code: int) -> str:
        letter = self._find(code)
        if len(self) < 8192:  # a bound, so that any text keeps a worker small
            self[code] = letter
        return letter

    def having(self, *properties: str, without: tuple[str, ...] = ()) -> str:
        """The letters, for use in a character class, whose characters have one of the properties."""
        return "".join(
            letter
            for letter, have in self.letters.items()
            if any(p in have for p in properties) and not any(p in have for p in without)
        )


@functools.cache
def _machinery() -> tuple[_Classes, re.Pattern[str], re.Pattern[str], re.Pattern[str], str]:
    """The class table, the pattern of a token, the two parts of it that can overlap, and the letters where they do."""
    classes = _Classes()

    def one(*properties: str, without: tuple[str, ...] = ()) -> str:
        return f"[{classes.having(*properties, without=without)}]"

    extend = f"{one('extend', 'format', 'zwj')}*+"

    def extended(*properties: str) -> str:
        return one(*properties) + extend

    letter, hebrew = extended("aletter", "hebrewletter"), extended("hebrewletter")
    numeric, katakana = extended("numeric"), extended("katakana")
    mid_letter = extended("midletter", "midnumlet", "singlequote")
    mid_number = extended("midnum", "midnumlet", "singlequote")
    joiner = f"(?:{extended('extendnumlet')})"
    single, double = extended("singlequote"), extended("doublequote")
    core = (
        f"(?:{katakana}(?:{joiner}*+{katakana})*"
        f"|(?:{hebrew}(?:{single}|{double}{hebrew})"
        f"|{numeric}(?:(?:{joiner}*+|{mid_number}){numeric})*"
        f"|{letter}(?:(?:{joiner}*+|{mid_letter}){letter})*)+)"
    )
    word = f"{joiner}*+{core}(?:{joiner}++{core})*{joiner}*+"

    zwj = one("zwj")
    mark = one("extend", "format", without=("textsel", "emojisel"))
    any_mark = f"{one('extend', 'format', 'zwj', without=('textsel', 'emojisel'))}*+"
    # A joiner is a mark only if no picture follows it.
    trailing = f"(?:{mark}|{zwj}(?!{zwj}*+{one('emoji', 'modifier')}))*+"
    element = (
        f"(?:(?:{zwj}*+{one('base')}{any_mark})?{one('modifier')}{trailing}"
        f"|{zwj}*+{one('emoji')}{trailing}{one('emojisel')}?)"
    )
    keycap = f"{one('keybase')}{any_mark}{one('emojisel')}?{one('keycap')}{any_mark}"
    flag = f"(?:{extended('regionalindicator')}){{2}}"
    emoji = f"(?:{element}(?:{zwj}{element})*|{keycap}|{flag})"
    token = re.compile(f"{word}|{emoji}|(?:{extended('complex')})+|{extended('han', 'hiragana')}")
    both = "".join(sorted(set(classes.having("aletter")) & set(classes.having("emoji", "base", "modifier"))))
    return classes, token, re.compile(word), re.compile(emoji), both


def words(text: str) -> list[str]:
    """Splits a text of any length into words, in order, without case change."""
    classes, token, _, _, both = _machinery()
    kinds = text.translate(classes)
    if _LONG_RUN.search(text) or any(letter in kinds for letter in both):
        return _words_with_care(text, kinds)
    return [text[match.start() : match.end()] for match in token.finditer(kinds)]


def _words_with_care(text: str, kinds: str) -> list[str]:
    """`words` for texts with a word at the length limit or a character that starts both a word and an emoji."""
    classes, token, word, emoji, both = _machinery()
    joiners = re.compile(f"[{classes.having('extendnumlet', 'extend', 'format', 'zwj')}]*+")
    starts = re.compile(f"[{classes.having(*_STARTS)}]")
    found: list[str] = []
    position = 0
    while (candidate := starts.search(kinds, position)) is not None:
        start = candidate.start()
        limit = _limit(text, start)
        patterns = (token, word, emoji) if kinds[start] in both else (token,)
        ends = [match.end() for pattern in patterns if (match := pattern.match(kinds, start, limit))]
        if ends:
            position = max(ends)
            found.append(text[start:position])
        else:
            run = joiners.match(kinds, start)
            end = run.end() if run else start
            position = max(start + 1, end - MAX_WORD)  # no word starts in a buffer of underscores
    return found


def _limit(text: str, start: int) -> int:
    end, units = start, 0
    window = text[start : start + MAX_WORD]
    if window.isascii() or max(window) <= "\uffff":
        return start + len(window)
    for character in window:
        units += 2 if ord(character) > 0xFFFF else 1
        if units > MAX_WORD:
            break
        end += 1
    return end
