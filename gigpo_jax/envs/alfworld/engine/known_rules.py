"""Checks that a game has the domain and the grammar that the native engine implements.

Every game file has its own copy of both texts. Where a copy differs, its meaning is compared.
"""

import functools
import hashlib
import re

from gigpo_jax.core.errors import InputError

# Digests of the meanings, and of the texts as alfworld 0.4.2 ships them (data/alfred.pddl,
# data/alfred.twl2).
DOMAIN = "bd1999738e15fc6c6d7629b71d4bdf33"
GRAMMAR = "de84ec717f2680b5b4a6bc1b5d603164"
_SHIPPED = ("633084ef40803497ab9d923d0e3ccb04", "73c83b79b733369d23e65b082c8e536f")
# Fixes of games that the native engine cannot play.
OFFICIAL = 'play this game with engine="official"'
AGAIN = "make or download the game again"

_TASK = re.compile(r'"Your task is to: ([^"\n]*)\."')
# Markup of the grammar's text generator: a phrase with it is not shown as it is written.
_MARKUP = re.compile(r"[;|<>\[\]#{}\\\x00-\x1f]")


def digest_text(text: str) -> str:
    """A BLAKE2b digest of a text, 32 hexadecimal digits."""
    # JSON may hold half of a surrogate pair, which strict UTF-8 refuses.
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


# A split has thousands of games with the same texts, and a meaning takes far longer than a look-up.
@functools.lru_cache(maxsize=64)
def _is_alfred(text: str, kind: str) -> bool:
    """Whether a "domain" or the rules of a "grammar" mean ALFRED's."""
    if digest_text(text) in _SHIPPED:
        return True
    from gigpo_jax.envs.alfworld.engine import rule_meanings

    try:
        if kind == "domain":
            return digest_text(rule_meanings.extract_domain_meaning(text)) == DOMAIN
        return digest_text(rule_meanings.extract_grammar_meaning(text)) == GRAMMAR
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False  # rules of other shapes


def check_domain(domain: str, path: str) -> None:
    """Raises InputError for a domain other than ALFRED's."""
    if not _is_alfred(domain, "domain"):
        reason = "'pddl_domain' is not the ALFRED domain of alfworld 0.4.2"
        raise InputError(reason, key=path, fix=OFFICIAL)


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
        raise InputError("'grammar' has no line \"Your task is to: ...\"", key=path, fix=AGAIN)
    phrase = task_line.group(1)
    if _MARKUP.search(phrase):
        raise InputError(
            f"the task phrase {phrase!r} holds markup of the grammar", key=path, fix=OFFICIAL
        )
    # Without the phrase the grammars of all games are equal: one look-up serves a whole split.
    if not _is_alfred(grammar[: task_line.start(1)] + grammar[task_line.end(1) :], "grammar"):
        reason = "'grammar' is not the ALFRED grammar of alfworld 0.4.2"
        raise InputError(reason, key=path, fix=OFFICIAL)
    return phrase
