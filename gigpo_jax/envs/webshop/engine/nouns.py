"""Taggers: functions from a product title to its nouns (lower case, in order, with repeats), which rewards compare.

The original uses spaCy. The default here is built in, so that results do not depend on installed packages.
"""

import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gigpo_jax.errors import InputError

Tagger = Callable[[str], Sequence[str]]
_LOG = logging.getLogger(__name__)
_SPACY_MODELS = ("en_core_web_sm", "en_core_web_lg", "en_core_web_md")
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|[^\W_]*\d[^\W_]*")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FUNCTION_WORDS = frozenset(
    _words(
        "a about above after all also an and any anti are as at be because been before below between both but by "
        "can co could do does each else even ever every few for from had has have he her here him his how i if in "
        "inch into is it its just like many may me might more most much must my near no non nor not of off on once "
        "only or other our out over own per plus she should since so some such than that the their them then there "
        "these they this those through to too under until up upon us very via was we were what when where which "
        "while who whose why will with within without would x you your"
    )
)
_ADJECTIVES = frozenset(
    _words(
        "active adjustable advanced affordable aged all-natural alternative amazing ancient artificial athletic "
        "authentic automatic baggy basic beautiful best better big bold bright brown casual certified cheap chic "
        "chunky clean clear classic clinical cold comfortable comfy common complete compact cool cordless corded "
        "cozy creamy crisp cruel cute daily dark decorative deep delicate delicious dense different digital "
        "disposable double dry dual durable early easy eco elastic electric elegant empty essential exclusive "
        "exquisite extra fair false fancy fast favorite fashionable faux fine finished firm fit flat flexible "
        "fluffy foldable formal free fresh front full functional funny gentle genuine giant glossy good graphic "
        "great green handmade handy happy hard heavy hidden high hollow hot huge hypoallergenic ideal indoor "
        "infinite inner instant international invisible juicy large last lasting late latest lean light lightweight "
        "little long loose lovely low luxurious magnetic main major manual massive matte maximum mechanical medium "
        "mini minimal minimalist modern multi multiple narrow natural neutral new next nice nonslip normal notched "
        "novel odd official old open organic original outdoor outer oval pale perfect personal plain plant-based "
        "plump plush pointed polished popular portable powerful precious premium pretty prime private pro "
        "professional proper pure quick quiet rapid raw ready real rear rectangular red refillable regular reliable "
        "removable replaceable resealable resistant retractable reusable reversible rich rigid robust rotating "
        "round rugged rustic safe salty scented sensitive separate severe sexy sharp sheer shiny short silent "
        "simple single skinny sleek sleeveless slim slip slow small smart smooth soft solid special spare square "
        "stackable standard sticky stiff straight stretchy strong sturdy stylish super superior supportive sweet "
        "swivel synthetic tall tender thermal thick thin tight tiny total tough traditional transparent tropical "
        "true twin ultimate ultra unique universal unscented upper useful usual vegan versatile vibrant vintage "
        "warm washable waterproof wearable wet white whole wide wild wireless wonderful wooden woven yellow young "
        "black blue gray grey pink purple orange golden"
    )
)
_VERBS = frozenset(
    _words(
        "add adds adjust allow allows assemble avoid bring brings build carry carrying change charging choose clean "
        "cleaning come comes compatible cook create cut cutting designed does drying enjoy fit fits fitting get "
        "give gives go hang hanging help helps hold holds improve includes including install keep keeps lasts let "
        "lets looking made make makes making meet need needs offer pack prevent prevents protect protects provide "
        "provides reduce reduces remove removes replace saving see show stay stays support supports take try turn "
        "use used using wash wear wearing work works"
    )
)
_ADJECTIVE_ENDINGS = ("able", "ible", "ful", "less", "ous", "ish", "ive", "proof", "free", "ic")
_NOUNS_AS_THEY_LOOK = frozenset(
    _words(
        "adhesive additive base cable clinic cosmetic cosmetics dish fabric fish garlic logic magic mechanic mosaic "
        "music narrative olive organic picnic plastic polish radish relish table tablet topic traffic tunic "
        "vegetable variable"
    )
)


def builtin_nouns(title: str) -> tuple[str, ...]:
    """The nouns of a title, by word lists and endings; names and brands count as nouns.

    Most words of titles are nouns, so a word is one unless it is a function word, a number, a known adjective or verb,
    an adverb, or a long word with an adjective's ending.
    """
    nouns = []
    for match in _TOKEN.finditer(title):
        word = match.group().lower()
        if word.endswith(("'s", "’s")):
            word = word[:-2]
        if len(word) < 2 or any(letter.isdigit() for letter in word) or word in _FUNCTION_WORDS:
            continue
        if word not in _NOUNS_AS_THEY_LOOK:
            if word in _ADJECTIVES or word in _VERBS:
                continue
            if len(word) > 5 and (
                word.endswith(_ADJECTIVE_ENDINGS) or (word.endswith("ly") and word[-3] not in "aeio")
            ):
                continue
        nouns.append(word)
    return tuple(nouns)


def file_nouns(path: str | Path) -> Tagger:
    """A tagger from a JSON file of title -> list of nouns; the built-in one tags other titles."""
    try:
        table: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise InputError(
            f"nouns={str(path)!r}: cannot be read ({err}); name a JSON file of title -> nouns, or 'builtin'"
        ) from err
    if not isinstance(table, dict) or not all(isinstance(nouns, list) for nouns in table.values()):
        raise InputError(f"nouns={str(path)!r}: is not a JSON object of title -> list of nouns")
    missing: list[str] = []

    def tagger(title: str) -> Sequence[str]:
        nouns = table.get(title)
        if nouns is None:
            if not missing:
                _LOG.warning(
                    "%s has no nouns for %r; the built-in tagger is used for titles that are not in it", path, title
                )
            missing[:] = [title]
            return builtin_nouns(title)
        return [str(noun) for noun in nouns]

    return tagger


def spacy_nouns() -> Tagger:
    """A tagger that uses spaCy, as the original does."""
    try:
        import spacy
    except ImportError as err:
        raise InputError("nouns='spacy': spaCy is not installed; `pip install spacy`, or choose 'builtin'") from err
    for name in _SPACY_MODELS:
        if spacy.util.is_package(name):
            pipeline = spacy.load(name, exclude=["parser", "ner"])
            break
    else:
        raise InputError(f"nouns='spacy': none of the models {', '.join(_SPACY_MODELS)} is installed; choose 'builtin'")

    def tagger(title: str) -> Sequence[str]:
        return [token.text.lower() for token in pipeline(title) if token.pos_ in ("NOUN", "PROPN")]

    return tagger


def open_tagger(nouns: str | Path | Tagger | None) -> Tagger:
    """The tagger of an option: None or "builtin", "spacy", a file, or a function."""
    if nouns is None or nouns == "builtin":
        return builtin_nouns
    if nouns == "spacy":
        return spacy_nouns()
    return nouns if callable(nouns) else file_nouns(nouns)
