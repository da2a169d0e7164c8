"""Checks that a game has the domain and the grammar that the native engine implements.

Every game file has its own copy of both texts. Copies in downloaded games differ in comments, spacing, unused rules and
the place of the help text, so their meaning is compared: of the domain, its types and the conditions and effects of its
actions; of the grammar, the commands and the production rules that are reachable from them.
"""

import hashlib
import json
import re
from typing import Any

from gigpo_jax.envs.alfworld.engine.pddl_problem import Expression, parse_expression
from gigpo_jax.errors import InputError

# Digests of the meanings, and of the texts as alfworld 0.4.2 ships them (data/alfred.pddl, data/alfred.twl2).
DOMAIN = "bd1999738e15fc6c6d7629b71d4bdf33"
GRAMMAR = "de84ec717f2680b5b4a6bc1b5d603164"
_known = {"633084ef40803497ab9d923d0e3ccb04", "73c83b79b733369d23e65b082c8e536f"}
_MOST_KNOWN = 1000

_TASK = re.compile(r'"Your task is to: ([^"\n]*)\."')
# Markup of the grammar's text generator: a phrase with it is not shown as it is written.
_MARKUP = re.compile(r"[;|<>\[\]#{}\\\x00-\x1f]")
_HASH_LINE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_TOKEN = re.compile(r'\s*(?:"""(?P<block>.*?)"""|"(?P<text>[^"]*)"|(?P<word>::|[;{}]|[\w/-]+))', re.DOTALL)
_SYMBOL = re.compile(r"#([\w()/!<>\-\s,.]+)#")
ACTIONS = {
    "gotolocation",
    "openobject",
    "closeobject",
    "pickupobject",
    "putobject",
    "cleanobject",
    "heatobject",
    "coolobject",
    "toggleobject",
    "sliceobject",
    "examinereceptacle",
    "examineobject",
    "look",
    "inventory",
    "help",
}
_LISTS = "#list_empty##list_separator##list_last_separator#"  # used by every list, without being named


def digest(text: str) -> str:
    """A BLAKE2b digest of a text, 32 hexadecimal digits."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def domain_meaning(domain: str) -> str:
    """The domain's types and actions as JSON, sorted, without costs; ValueError if it is not a domain."""
    text = "\n".join(line.split(";", 1)[0] for line in domain.lower().split("\n"))
    parts = [part for part in parse_expression(text) if isinstance(part, list)]
    types = sorted(str(word) for part in parts if part[:1] == [":types"] for word in part[1:])
    actions = sorted(json.dumps(_without_costs(part)) for part in parts if part[:1] == [":action"])
    return json.dumps([types, actions])


def _without_costs(formula: Expression) -> Expression:
    return [
        _without_costs(part) if isinstance(part, list) else part
        for part in formula
        if not (isinstance(part, list) and part[:1] == ["increase"])
    ]


def grammar_meaning(grammar: str) -> str:
    """The commands and the production rules reachable from them and the first text, as JSON with sorted keys.

    Args:
      grammar: the text without its task phrase; ValueError if it is not a grammar.
    """
    rules, fields = _parse_grammar(grammar)
    fields = {name: field for name, field in fields.items() if name in ACTIONS}
    for field in fields.values():
        field["feedback"] = _inlined(field.get("feedback", ""), rules)
    reached: dict[str, Any] = {}
    waiting = _SYMBOL.findall("#intro#" + _LISTS + "".join(field["feedback"] for field in fields.values()))
    while waiting:
        name = waiting.pop()
        if name not in reached and name in rules:
            reached[name] = rules[name]
            waiting += [symbol for rule in rules[name] for symbol in _SYMBOL.findall(str(rule["rhs"]))]
    return json.dumps([fields, reached], sort_keys=True)


def _inlined(feedback: str, rules: dict[str, Any]) -> str:
    """A feedback, with a rule that is one plain text put in its place; leading blank lines are not shown."""
    found = _SYMBOL.fullmatch(feedback)
    only = rules.get(found.group(1), []) if found else []
    if len(only) == 1 and "condition" not in only[0] and not set(str(only[0]["rhs"])) & set("#{["):
        feedback = str(only[0]["rhs"])
    return feedback.replace("\\n", "\n").lstrip("\n") if "#" not in feedback else feedback


def _parse_grammar(grammar: str) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """The production rules by name, and for each action (lower case) its template and feedback."""
    words: list[str] = []
    blocks: dict[int, str] = {}
    text = _HASH_LINE.sub("", grammar).strip()
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError(f"cannot read {text[position : position + 20]!r}")
        position = found.end()
        if found.lastgroup != "word":
            blocks[len(words)] = found.group(found.lastgroup or 0)
        words.append(found.group("word") or "")
    rules: dict[str, Any] = {}
    fields: dict[str, dict[str, str]] = {}
    action = ""
    index = 0
    while index < len(words):
        if words[index] == "action" and words[index + 2 : index + 3] == ["{"]:
            action = words[index + 1].lower()
            fields[action] = {}
            index += 3
        elif words[index] == "}":
            action = ""
            index += 1
        elif words[index + 1 : index + 4] == ["::", "", ";"]:
            value = blocks[index + 2]
            if words[index] == "grammar":
                rules.update(json.loads(value))
            elif action:
                fields[action][words[index]] = value
            index += 4
        else:
            raise ValueError(f"cannot read {words[index]!r}")
    return rules, fields


def check_domain(domain: str, path: str) -> None:
    text = digest(domain)
    if text in _known:
        return
    try:
        meaning = digest(domain_meaning(domain))
    except (ValueError, RecursionError):
        meaning = ""
    if meaning != DOMAIN:
        raise InputError(
            f"{path}: 'pddl_domain' is not the ALFRED domain of alfworld 0.4.2; play this game with engine=\"official\""
        )
    _remember(text)


def split_task(grammar: str, path: str) -> str:
    """Checks the grammar and returns its task phrase, without the full stop; `path` is the game file, for messages.

    Raises:
      InputError: it is another grammar, has no phrase, or a phrase with markup.
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
    text = digest(rest)
    if text not in _known:
        try:
            meaning = digest(grammar_meaning(rest))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # rules of other shapes
            meaning = ""
        if meaning != GRAMMAR:
            raise InputError(
                f"{path}: 'grammar' is not the ALFRED grammar of alfworld 0.4.2; "
                'play this game with engine="official"'
            )
        _remember(text)
    return phrase


def _remember(text: str) -> None:
    if len(_known) < _MOST_KNOWN:
        _known.add(text)
