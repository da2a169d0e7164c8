"""Parses a game's PDDL problem: objects, initial facts, goal. What it does not know is refused."""

from dataclasses import dataclass

from gigpo_jax.envs.alfworld.engine.facts import KINDS, PREDICATES
from gigpo_jax.errors import InputError

Expression = list["str | Expression"]  # a nested list of lower-case words, as the parentheses say


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem's content, all words in lower case."""

    kinds: dict[str, str]  # thing -> its kind ("receptacle", "object", ...), for every declared thing
    facts: dict[
        str, dict[tuple[str, ...], None]
    ]  # predicate -> the arguments for which it holds at the start, in order
    mentioned: frozenset[str]  # the things in some fact
    goal: Expression  # the goal formula


def parse_problem(text: str, path: str) -> Problem:
    """Parses the `pddl_problem` text of a game; `path` is the game file, for messages.

    Raises:
      InputError: a section is missing or cut, a fact or a kind is unknown, a thing is undeclared.
    """
    if ";" in text:
        text = "\n".join(line.split(";", 1)[0] for line in text.split("\n"))
    text = text.lower()
    if text.count("(") != text.count(")"):
        raise InputError(f"{path}: 'pddl_problem' is cut short (parentheses do not match); make or download it again")
    begins = [text.find(section) for section in ("(:objects", "(:init", "(:goal")]
    if -1 in begins:
        missing = ("(:objects", "(:init", "(:goal")[begins.index(-1)]
        raise InputError(f"{path}: 'pddl_problem' has no section {missing} ...); make or download the game again")
    if begins != sorted(begins):
        raise InputError(f"{path}: 'pddl_problem' must hold (:objects (:init (:goal in this order")
    kinds = _objects(text[begins[0] + len("(:objects") : begins[1]], path)
    facts = _init(text[begins[1] + len("(:init") : begins[2]], path)
    mentioned = frozenset(thing for tuples in facts.values() for arguments in tuples for thing in arguments)
    for name in facts:
        facts[name] = _checked(name, facts[name], kinds, path)
    try:
        goal = parse_expression(text[begins[2] :])
    except (ValueError, IndexError):
        raise InputError(f"{path}: the (:goal section of 'pddl_problem' is cut") from None
    if len(goal) != 2 or not isinstance(goal[1], list):
        raise InputError(f"{path}: the (:goal section of 'pddl_problem' must hold one formula")
    return Problem(kinds, facts, mentioned, goal[1])


def _objects(text: str, path: str) -> dict[str, str]:
    words = text.replace(")", " ) ").split()
    if words and words[-1] == ")":
        words.pop()
    kinds: dict[str, str] = {}
    waiting: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word == "-":
            kind = words[index + 1] if index + 1 < len(words) else ""
            if kind not in KINDS:
                raise InputError(f"{path}: unknown type {kind!r} in (:objects; known: {', '.join(sorted(KINDS))}")
            for name in waiting:
                if name in kinds:
                    raise InputError(f"{path}: {name!r} is declared twice in (:objects")
                kinds[name] = kind
            waiting.clear()
            index += 2
        else:
            waiting.append(word)
            index += 1
    if waiting:
        raise InputError(f"{path}: {waiting[0]!r} in (:objects has no type")
    return kinds


def _init(text: str, path: str) -> dict[str, dict[tuple[str, ...], None]]:
    """The facts; numeric and negated ones are skipped."""
    buckets: dict[str, dict[tuple[str, ...], None]] = {"(" + name: {} for name in PREDICATES}
    pieces = text.split(")")
    pieces.pop()  # the text after the section
    in_number = in_not = False
    for piece in pieces:
        words = piece.split()
        if words and words[0] == "(":
            words[:2] = ["".join(words[:2])]
        head = words[0] if words else ""
        bucket = buckets.get(head)
        if bucket is not None:
            bucket[tuple(words[1:])] = None
        elif not head:  # closes (not ...) or the section
            in_not = False
        elif head[0] != "(":
            if not in_number or len(words) != 1:
                raise InputError(f"{path}: cannot read {head!r} in (:init, a fact is (name thing ...)")
            in_number = False
        elif head == "(=":
            in_number = True
        elif head == "(not":
            in_not = True
        else:
            raise InputError(f"{path}: unknown fact {head} ...) in (:init; it is not of the ALFRED domain")
    if in_number or in_not:
        raise InputError(f"{path}: the (:init section of 'pddl_problem' is cut")
    return {head[1:]: bucket for head, bucket in buckets.items() if bucket}


def _checked(
    name: str, tuples: dict[tuple[str, ...], None], kinds: dict[str, str], path: str
) -> dict[tuple[str, ...], None]:
    """The facts of one predicate that can matter.

    A fact about a thing of another kind than in the rules (an openable object that is no receptacle) is left out, as no
    rule tests it. Where the rules say `object`, which in PDDL includes everything, it is refused.
    """
    wanted = PREDICATES[name]
    for arguments in tuples:
        if len(arguments) != len(wanted):
            raise InputError(f"{path}: ({name} {' '.join(arguments)}) needs {len(wanted)} argument(s)")
    strange: set[str] = set()
    for kind, column in zip(wanted, zip(*tuples)):
        for argument in set(column):
            found = kinds.get(argument)
            if found is None:
                raise InputError(f"{path}: ({name} ...) names {argument!r}, which (:objects does not declare")
            if found == kind or kind == "any":
                continue
            if kind == "object":
                raise InputError(f"{path}: ({name} ...) needs an object, but {argument!r} is a {found}")
            strange.add(argument)
    if strange:
        return {arguments: None for arguments in tuples if strange.isdisjoint(arguments)}
    return tuples


def parse_expression(text: str) -> Expression:
    """The first parenthesised expression of a text as a nested list; ValueError if it is cut."""
    stack: list[Expression] = [[]]
    for word in text.replace("(", " ( ").replace(")", " ) ").replace("?", " ?").split():
        if word == "(":
            inner: Expression = []
            stack[-1].append(inner)
            stack.append(inner)
        elif word == ")":
            stack.pop()
            if len(stack) == 1:
                break
        else:
            stack[-1].append(word)
    first = stack[0][0] if len(stack) == 1 and stack[0] else None
    if not isinstance(first, list):
        raise ValueError("a parenthesis is missing")
    return first
