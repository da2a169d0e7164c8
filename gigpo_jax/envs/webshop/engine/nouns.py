"""Taggers: functions from a product title to its nouns, which rewards compare.

Nouns are in lower case, in order, with repeats. The original uses spaCy. The default here is built
in, so that results do not depend on installed packages.
"""

import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gigpo_jax.core.errors import InputError

Tagger = Callable[[str], Sequence[str]]
_LOG = logging.getLogger(__name__)
_SPACY_MODELS = ("en_core_web_sm", "en_core_web_lg", "en_core_web_md")
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|[^\W_]*\d[^\W_]*")


def list_words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FUNCTION_WORDS = frozenset(
    list_words(
        "a about above after all also an and any anti are as at be because been before below "
        "between both but by can co could do does each else even ever every few for from had has "
        "have he her here him his how i if in inch into is it its just like many may me might "
        "more most much must my near no non nor not of off on once only or other our out over own "
        "per plus she should since so some such than that the their them then there these they "
        "this those through to too under until up upon us very via was we were what when where "
        "which while who whose why will with within without would x you your"
    )
)
_ADJECTIVES = frozenset(
    list_words(
        "active adjustable advanced affordable aged all-natural alternative amazing ancient "
        "artificial athletic authentic automatic baggy basic beautiful best better big bold "
        "bright brown casual certified cheap chic chunky clean clear classic clinical cold "
        "comfortable comfy common complete compact cool cordless corded cozy creamy crisp cruel "
        "cute daily dark decorative deep delicate delicious dense different digital disposable "
        "double dry dual durable early easy eco elastic electric elegant empty essential "
        "exclusive exquisite extra fair false fancy fast favorite fashionable faux fine finished "
        "firm fit flat flexible fluffy foldable formal free fresh front full functional funny "
        "gentle genuine giant glossy good graphic great green handmade handy happy hard heavy "
        "hidden high hollow hot huge hypoallergenic ideal indoor infinite inner instant "
        "international invisible juicy large last lasting late latest lean light lightweight "
        "little long loose lovely low luxurious magnetic main major manual massive matte maximum "
        "mechanical medium mini minimal minimalist modern multi multiple narrow natural neutral "
        "new next nice nonslip normal notched novel odd official old open organic original "
        "outdoor outer oval pale perfect personal plain plant-based plump plush pointed polished "
        "popular portable powerful precious premium pretty prime private pro professional proper "
        "pure quick quiet rapid raw ready real rear rectangular red refillable regular reliable "
        "removable replaceable resealable resistant retractable reusable reversible rich rigid "
        "robust rotating round rugged rustic safe salty scented sensitive separate severe sexy "
        "sharp sheer shiny short silent simple single skinny sleek sleeveless slim slip slow "
        "small smart smooth soft solid special spare square stackable standard sticky stiff "
        "straight stretchy strong sturdy stylish super superior supportive sweet swivel synthetic "
        "tall tender thermal thick thin tight tiny total tough traditional transparent tropical "
        "true twin ultimate ultra unique universal unscented upper useful usual vegan versatile "
        "vibrant vintage warm washable waterproof wearable wet white whole wide wild wireless "
        "wonderful wooden woven yellow young black blue gray grey pink purple orange golden"
    )
)
_VERBS = frozenset(
    list_words(
        "add adds adjust allow allows assemble avoid bring brings build carry carrying change "
        "charging choose clean cleaning come comes compatible cook create cut cutting designed "
        "does drying enjoy fit fits fitting get give gives go hang hanging help helps hold holds "
        "improve includes including install keep keeps lasts let lets looking made make makes "
        "making meet need needs offer pack prevent prevents protect protects provide provides "
        "reduce reduces remove removes replace saving see show stay stays support supports take "
        "try turn use used using wash wear wearing work works"
    )
)
_ADJECTIVE_ENDINGS = ("able", "ible", "ful", "less", "ous", "ish", "ive", "proof", "free", "ic")
_NOUNS_AS_THEY_LOOK = frozenset(
    list_words(
        "adhesive additive base cable clinic cosmetic cosmetics dish fabric fish garlic logic "
        "magic mechanic mosaic music narrative olive organic picnic plastic polish radish relish "
        "table tablet topic traffic tunic vegetable variable"
    )
)


def tag_builtin(title: str) -> tuple[str, ...]:
    """Returns a title's nouns, by word lists and endings.

    Names and brands count as nouns. Most words of titles are nouns, so a word is one unless it is a
    function word, a number, a known adjective or verb, an adverb, or a long word with an
    adjective's ending.
    """
    nouns = []
    for match in _TOKEN.finditer(title):
        word = match.group().lower()
        if word.endswith(("'s", "’s")):
            word = word[:-2]
        if _is_noun(word):
            nouns.append(word)
    return tuple(nouns)


def _is_noun(word: str) -> bool:
    if len(word) < 2 or any(letter.isdigit() for letter in word) or word in _FUNCTION_WORDS:
        return False
    if word in _NOUNS_AS_THEY_LOOK:
        return True
    if word in _ADJECTIVES or word in _VERBS:
        return False
    # Endings mislead in short words, such as "fable" or "comic".
    if len(word) <= 5:
        return True
    # Words such as "family" and "monopoly" are no adverbs.
    is_adverb = word.endswith("ly") and word[-3] not in "aeio"
    return not is_adverb and not word.endswith(_ADJECTIVE_ENDINGS)


def load_file_tagger(path: str | Path) -> Tagger:
    """Loads a tagger from a JSON file, title -> nouns; other titles get the built-in tagger."""
    try:
        table: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise InputError(
            f"cannot be read ({err})",
            key="nouns",
            value=repr(str(path)),
            fix="name a JSON file of title -> nouns, or 'builtin'",
        ) from err
    if not isinstance(table, dict) or not all(isinstance(nouns, list) for nouns in table.values()):
        raise InputError(
            "is not a JSON object of title -> list of nouns", key="nouns", value=repr(str(path))
        )
    missing_titles: list[str] = []

    def tag_title(title: str) -> Sequence[str]:
        nouns = table.get(title)
        # The built-in tagger stands in, so scores of such titles may differ from scores with the
        # file's tagger.
        if nouns is None:
            if not missing_titles:  # one warning is enough
                _LOG.warning(
                    "%s has no nouns for %r; the built-in tagger is used for titles not in it",
                    path,
                    title,
                )
                missing_titles.append(title)
            return tag_builtin(title)
        return [str(noun) for noun in nouns]

    return tag_title


def load_spacy_tagger() -> Tagger:
    """A tagger that uses spaCy, as the original does."""
    try:
        import spacy
    except ImportError as err:
        raise InputError(
            "spaCy is not installed",
            key="nouns",
            value="'spacy'",
            fix="`pip install spacy`, or choose 'builtin'",
        ) from err
    installed = [name for name in _SPACY_MODELS if spacy.util.is_package(name)]
    if not installed:
        raise InputError(
            f"none of the models {', '.join(_SPACY_MODELS)} is installed",
            key="nouns",
            value="'spacy'",
            fix="choose 'builtin'",
        )
    # Rewards read the tags alone, so syntax and names need not be computed.
    pipeline = spacy.load(installed[0], exclude=["parser", "ner"])

    def tag_title(title: str) -> Sequence[str]:
        return [token.text.lower() for token in pipeline(title) if token.pos_ in ("NOUN", "PROPN")]

    return tag_title


def open_tagger(nouns: str | Path | Tagger | None) -> Tagger:
    """Returns the tagger of an option: None or "builtin", "spacy", a file, or a function."""
    if nouns is None or nouns == "builtin":
        return tag_builtin
    if nouns == "spacy":
        return load_spacy_tagger()
    if callable(nouns):
        return nouns
    return load_file_tagger(nouns)
