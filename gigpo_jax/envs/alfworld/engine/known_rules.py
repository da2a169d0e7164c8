"""Checks that a game has the domain and the grammar that the native engine implements.

Every game file has its own copy of both texts. Where a copy differs, its meaning is compared.
"""

import hashlib
import re

from gigpo_jax.core.errors import InputError

# Digests of the meanings, and of the texts as alfworld 0.4.2 ships them (data/alfred.pddl,
# data/alfred.twl2).
DOMAIN = "bd1999738e15fc6c6d7629b71d4bdf33"
GRAMMAR = "de84ec717f2680b5b4a6bc1b5d603164"
# Digests of texts whose meaning was checked: a split has thousands of games with the same texts,
# and a meaning takes far longer than a digest. Bounded: a folder may hold ever different texts.
_checked_texts = {"633084ef40803497ab9d923d0e3ccb04", "73c83b79b733369d23e65b082c8e536f"}
_MAX_CHECKED_TEXTS = 1000

_TASK = re.compile(r'"Your task is to: ([^"\n]*)\."')
# Markup of the grammar's text generator: a phrase with it is not shown as it is written.
_MARKUP = re.compile(r"[;|<>\[\]#{}\\\x00-\x1f]")


def digest_text(text: str) -> str:
    """A BLAKE2b digest of a text, 32 hexadecimal digits."""
    # JSON may hold half of a surrogate pair, which strict UTF-8 refuses.
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def check_domain(domain: str, path: str) -> None:
    """Raises InputError for a domain other than ALFRED's."""
    text_digest = digest_text(domain)
    if text_digest in _checked_texts:
        return
    from gigpo_jax.envs.alfworld.engine.rule_meanings import extract_domain_meaning

    try:
        meaning = digest_text(extract_domain_meaning(domain))
    except (ValueError, RecursionError):
        meaning = ""
    if meaning != DOMAIN:
        raise InputError(
            "'pddl_domain' is not the ALFRED domain of alfworld 0.4.2",
            key=path,
            fix='play this game with engine="official"',
        )
    _remember_text(text_digest)


def split_task(grammar: str, path: str) -> str:
    """Checks the grammar; returns its task phrase without the full stop.

    Args:
      grammar: Text of the grammar.
      path: Game file, for messages.

    Raises:
      InputError: it is another grammar, has no phrase, or a phrase with markup.
    """
    # Generated and genuine games have the phrase in the text of their grammar.
    task_line = _TASK.search(grammar)
    if task_line is None:
        raise InputError(
            "'grammar' has no line \"Your task is to: ...\"",
            key=path,
            fix="make or download the game again",
        )
    phrase = task_line.group(1)
    if _MARKUP.search(phrase):
        raise InputError(
            f"the task phrase {phrase!r} holds markup of the grammar",
            key=path,
            fix='play this game with engine="official"',
        )
    # Without the phrase the grammars of all games are equal, so one digest serves a whole split.
    rules = grammar[: task_line.start(1)] + grammar[task_line.end(1) :]
    text_digest = digest_text(rules)
    if text_digest in _checked_texts:
        return phrase
    from gigpo_jax.envs.alfworld.engine.rule_meanings import extract_grammar_meaning

    try:
        meaning = digest_text(extract_grammar_meaning(rules))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        meaning = ""  # rules of other shapes
    if meaning != GRAMMAR:
        raise InputError(
            "'grammar' is not the ALFRED grammar of alfworld 0.4.2",
            key=path,
            fix='play this game with engine="official"',
        )
    _remember_text(text_digest)
    return phrase


def _remember_text(text_digest: str) -> None:
    if len(_checked_texts) < _MAX_CHECKED_TEXTS:
        _checked_texts.add(text_digest)
