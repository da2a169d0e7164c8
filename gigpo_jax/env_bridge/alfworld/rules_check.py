"""Whether a game carries the one domain and the one grammar that our engine is written for.

Every ALFWorld game holds its own copy of both texts; only the task phrase in the grammar differs. The texts themselves
are not part of this package, their hashes are: first of the text as it is shipped (the usual case, one hash), then of
its meaning (comments, white space and, in the domain, case taken out), so that a reformatted copy is known as well.
"""

import hashlib
import json
import re

from gigpo_jax.errors import InputError

# Digests of alfworld 0.4.2 (data/alfred.pddl, data/alfred.twl2): of the text, and of its meaning.
DOMAIN = ("633084ef40803497ab9d923d0e3ccb04", "fc511d9ac769782c0492858a87601913")
GRAMMAR = ("73c83b79b733369d23e65b082c8e536f", "2d25b48b36e53f41babf4479dd7e0dd1")

_TASK = re.compile(r'"Your task is to: ([^"\n]*)\."')
_COMMENT = re.compile(r";[^\n]*")
_HASH_LINE = re.compile(r"^\s*#.*$", re.MULTILINE)
_BLOCK = re.compile(r'grammar\s*::\s*"""(.*?)"""\s*;', re.DOTALL)
_FIELD = re.compile(r'(template|feedback)\s*::\s*"([^"]*)"\s*;')
# What the grammar's own text generator reads as markup: a phrase with it would not be shown as it is written.
_MARKUP = re.compile(r"[;|<>\[\]#{}\\\x00-\x1f]")


def digest(text: str) -> str:
    """A BLAKE2b digest of a text, 32 hexadecimal digits."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def domain_meaning(domain: str) -> str:
    """The domain as one line of tokens: no comments, lower case, single spaces."""
    text = _COMMENT.sub("", domain).lower()
    return " ".join(text.replace("(", " ( ").replace(")", " ) ").split())


def grammar_meaning(grammar: str) -> str:
    """The grammar, its task phrase already taken out, as JSON: production rules and the actions' fields.

    Raises:
      ValueError: a block of rules is not JSON.
    """
    rules: dict[str, object] = {}
    for block in _BLOCK.findall(grammar):
        rules.update(json.loads(_HASH_LINE.sub("", block)))
    rest = " ".join(_BLOCK.sub("", grammar).split())
    return json.dumps([rules, sorted(_FIELD.findall(rest)), " ".join(_FIELD.sub("", rest).split())], sort_keys=True)


def check_domain(domain: str, path: str) -> None:
    """Refuses a domain that is not ALFRED's.

    Raises:
      InputError: it is another one.
    """
    if digest(domain) == DOMAIN[0] or digest(domain_meaning(domain)) == DOMAIN[1]:
        return
    raise InputError(
        f"{path}: 'pddl_domain' is not the ALFRED domain of alfworld 0.4.2 that our engine knows; "
        'play this game with engine="official"'
    )


def split_task(grammar: str, path: str) -> str:
    """Checks the grammar and takes the task phrase out of it.

    Args:
      grammar: the game's grammar.
      path: the game file, for the message.

    Returns:
      The phrase, such as "put a mug in desk", without the full stop that the grammar puts behind it.

    Raises:
      InputError: it is another grammar, has no phrase, or one that the official engine would not show as written.
    """
    found = _TASK.search(grammar)
    if found is None:
        raise InputError(f"{path}: 'grammar' has no line \"Your task is to: ...\"; make or download the game again")
    phrase = found.group(1)
    if _MARKUP.search(phrase):
        raise InputError(
            f'{path}: the task phrase {phrase!r} holds markup of the grammar; play this game with engine="official"'
        )
    rest = grammar[: found.start(1)] + grammar[found.end(1) :]
    if digest(rest) != GRAMMAR[0]:
        try:
            meaning = digest(grammar_meaning(rest))
        except ValueError:
            meaning = ""
        if meaning != GRAMMAR[1]:
            raise InputError(
                f"{path}: 'grammar' is not the ALFRED grammar of alfworld 0.4.2 that our engine knows; "
                'play this game with engine="official"'
            )
    return phrase
