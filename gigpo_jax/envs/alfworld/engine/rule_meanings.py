"""The meaning of a game's domain and grammar, for texts that are not those of alfworld 0.4.2.

Copies in downloaded games differ in comments, spacing, unused rules and the place of the help text,
so their meaning is compared: of the domain, its types and the conditions and effects of its
actions; of the grammar, the commands and the production rules that are reachable from them.
"""

import json
import re
from typing import Any

from gigpo_jax.envs.alfworld.engine.pddl_problem import Expression, parse_expression

_HASH_LINE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_TOKEN = re.compile(
    r'\s*(?:"""(?P<block>.*?)"""|"(?P<text>[^"]*)"|(?P<word>::|[;{}]|[\w/-]+))', re.DOTALL
)
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
# Symbols that every list uses without naming them.
_LIST_SYMBOLS = "#list_empty##list_separator##list_last_separator#"


def extract_domain_meaning(domain: str) -> str:
    """Returns a domain's types and actions without costs, as sorted JSON.

    Raises:
      ValueError: the text is no domain.
    """
    text = "\n".join(line.split(";", 1)[0] for line in domain.lower().split("\n"))
    types: list[str] = []
    actions: list[str] = []
    for section in parse_expression(text):
        if isinstance(section, str):
            continue
        if section[:1] == [":types"]:
            types += [str(word) for word in section[1:]]
        elif section[:1] == [":action"]:
            actions.append(json.dumps(_remove_costs(section)))
    return json.dumps([sorted(types), sorted(actions)])


def _remove_costs(formula: Expression) -> Expression:
    terms: Expression = []
    for term in formula:
        if isinstance(term, str):
            terms.append(term)
        # Costs guide a planner and never change a state.
        elif term[:1] != ["increase"]:
            terms.append(_remove_costs(term))
    return terms


def extract_grammar_meaning(grammar: str) -> str:
    """Returns a grammar's commands, and the production rules that they or the first text reach.

    Args:
      grammar: Text of a grammar without its task phrase.

    Returns:
      JSON with sorted keys.

    Raises:
      ValueError: the text is no grammar.
    """
    rules, fields = _parse_grammar(grammar)
    fields = {name: field for name, field in fields.items() if name in ACTIONS}
    for field in fields.values():
        field["feedback"] = _inline_plain_rule(field.get("feedback", ""), rules)

    feedbacks = "".join(field["feedback"] for field in fields.values())
    reachable_rules: dict[str, Any] = {}
    # Rules that nothing reaches differ between games, and never show.
    pending_symbols = _SYMBOL.findall("#intro#" + _LIST_SYMBOLS + feedbacks)
    while pending_symbols:
        name = pending_symbols.pop()
        if name in reachable_rules or name not in rules:
            continue
        reachable_rules[name] = rules[name]
        for rule in rules[name]:
            pending_symbols += _SYMBOL.findall(str(rule["rhs"]))
    return json.dumps([fields, reachable_rules], sort_keys=True)


def _inline_plain_rule(feedback: str, rules: dict[str, Any]) -> str:
    """Replaces a symbol by its only rule, if that is plain text, and drops leading blank lines.

    The engine does not show leading blank lines of a text.
    """
    symbol = _SYMBOL.fullmatch(feedback)
    alternatives = rules.get(symbol.group(1), []) if symbol else []
    if len(alternatives) == 1:
        text = str(alternatives[0]["rhs"])
        if "condition" not in alternatives[0] and not set(text) & set("#{["):
            feedback = text
    if "#" in feedback:
        return feedback
    return feedback.replace("\\n", "\n").lstrip("\n")


def _parse_grammar(grammar: str) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Reads the production rules by name, and by action (lower case) its template and feedback."""
    words, blocks = _tokenize_grammar(grammar)
    rules: dict[str, Any] = {}
    fields: dict[str, dict[str, str]] = {}
    action = ""
    index = 0
    while index < len(words):
        # A rule or a field may be called "action", too; only `action NAME {` opens a block.
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


def _tokenize_grammar(grammar: str) -> tuple[list[str], dict[int, str]]:
    """Splits a grammar into words, with "" for each quoted text, and the quoted texts by index."""
    words: list[str] = []
    quoted_texts: dict[int, str] = {}
    text = _HASH_LINE.sub("", grammar).strip()
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError(f"cannot read {text[position : position + 20]!r}")
        position = token.end()
        if token.lastgroup != "word":
            quoted_texts[len(words)] = token.group(token.lastgroup or 0)
        words.append(token.group("word") or "")
    return words, quoted_texts
