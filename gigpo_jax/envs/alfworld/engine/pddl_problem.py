"""Parses a game's PDDL problem: objects, initial facts, goal. Unknown content is refused."""

from dataclasses import dataclass
from typing import Final

from gigpo_jax.core.errors import InputError

Expression = list["str | Expression"]  # a nested list of lower-case words, as the parentheses say
Tuples = dict[tuple[str, ...], None]  # arguments of a predicate's facts: a set that keeps its order

KINDS: Final = frozenset({"agent", "location", "receptacle", "object", "rtype", "otype"})

# Predicate -> kinds of its arguments; "any" where the domain does not restrict it.
PREDICATES: Final[dict[str, tuple[str, ...]]] = {
    "atlocation": ("agent", "location"),
    "receptacleatlocation": ("receptacle", "location"),
    "objectatlocation": ("object", "location"),
    "openable": ("receptacle",),
    "opened": ("receptacle",),
    "inreceptacle": ("object", "receptacle"),
    "isreceptacleobject": ("object",),
    "inreceptacleobject": ("object", "object"),
    "isreceptacleobjectfull": ("object",),
    "wasinreceptacle": ("object", "receptacle"),
    "checked": ("any",),
    "examined": ("location",),
    "receptacletype": ("receptacle", "rtype"),
    "cancontain": ("rtype", "otype"),
    "objecttype": ("object", "otype"),
    "holds": ("agent", "object"),
    "holdsany": ("agent",),
    "holdsanyreceptacleobject": ("agent",),
    "full": ("receptacle",),
    "isclean": ("object",),
    "cleanable": ("object",),
    "ishot": ("object",),
    "heatable": ("object",),
    "iscool": ("object",),
    "coolable": ("object",),
    "pickupable": ("object",),
    "moveable": ("object",),
    "toggleable": ("object",),
    "ison": ("object",),
    "istoggled": ("object",),
    "sliceable": ("object",),
    "issliced": ("object",),
}


_SECTIONS = ("(:objects", "(:init", "(:goal")


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem's content, all words in lower case.

    Attributes:
      kinds: Thing -> kind ("receptacle", "object", ...), for every declared thing.
      facts: Predicate -> arguments of its facts at the start, in order.
      mentioned: Things in some fact.
      goal: Goal formula.
    """

    kinds: dict[str, str]
    facts: dict[str, Tuples]
    mentioned: frozenset[str]
    goal: Expression


def parse_problem(text: str, path: str) -> Problem:
    """Parses the `pddl_problem` text of a game.

    Args:
      text: PDDL problem.
      path: Game file, for messages.

    Raises:
      InputError: a section is missing or cut, a fact or a kind is unknown, a thing is undeclared.
    """
    if ";" in text:
        text = _remove_comments(text)
    # PDDL does not tell cases apart.
    text = text.lower()
    # A download that broke off is the usual damage. This test gives it a message of its own.
    if text.count("(") != text.count(")"):
        raise InputError(
            "'pddl_problem' is cut short (parentheses do not match)",
            key=path,
            fix="make or download it again",
        )
    objects_section, init_section, goal_section = _split_sections(text, path)
    kinds = _parse_objects(objects_section, path)
    facts = _parse_init(init_section, path)
    mentioned: set[str] = set()
    for tuples in facts.values():
        for arguments in tuples:
            mentioned.update(arguments)
    # After `mentioned`: the official engine counts the facts left out here when it numbers names.
    for name in facts:
        facts[name] = _check_facts(name, facts[name], kinds, path)
    try:
        goal = parse_expression(goal_section)
    except (ValueError, IndexError):
        raise InputError("the (:goal section of 'pddl_problem' is cut", key=path) from None
    if len(goal) != 2 or not isinstance(goal[1], list):
        raise InputError("the (:goal section of 'pddl_problem' must hold one formula", key=path)
    return Problem(kinds, facts, frozenset(mentioned), goal[1])


def _remove_comments(text: str) -> str:
    return "\n".join(line.split(";", 1)[0] for line in text.split("\n"))


def _split_sections(text: str, path: str) -> tuple[str, str, str]:
    """The texts after (:objects, after (:init, and from (:goal on."""
    starts = []
    for section in _SECTIONS:
        start = text.find(section)
        if start < 0:
            raise InputError(
                f"'pddl_problem' has no section {section} ...)",
                key=path,
                fix="make or download the game again",
            )
        starts.append(start)
    # The slices below rely on this order.
    if starts != sorted(starts):
        raise InputError("'pddl_problem' must hold (:objects (:init (:goal in this order", key=path)
    objects_start, init_start, goal_start = starts
    return (
        text[objects_start + len("(:objects") : init_start],
        text[init_start + len("(:init") : goal_start],
        text[goal_start:],
    )


def _parse_objects(text: str, path: str) -> dict[str, str]:
    """Thing -> kind."""
    words = text.replace(")", " ) ").split()
    if words and words[-1] == ")":
        words.pop()
    kinds: dict[str, str] = {}
    untyped_names: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word != "-":
            untyped_names.append(word)
            index += 1
            continue
        kind = words[index + 1] if index + 1 < len(words) else ""
        if kind not in KINDS:
            raise InputError(
                f"unknown type {kind!r} in (:objects",
                key=path,
                fix=f"use one of {', '.join(sorted(KINDS))}",
            )
        # PDDL writes the type once, behind all names of it: `a b c - object`.
        for name in untyped_names:
            if name in kinds:
                raise InputError(f"{name!r} is declared twice in (:objects", key=path)
            kinds[name] = kind
        untyped_names.clear()
        index += 2
    if untyped_names:
        raise InputError(f"{untyped_names[0]!r} in (:objects has no type", key=path)
    return kinds


def _parse_init(text: str, path: str) -> dict[str, Tuples]:
    """Reads the arguments of the facts by predicate, without numeric and negated facts."""
    # Facts have no nesting, so one split at the closing parentheses reads them. This section is
    # most of a problem: a parser of nested lists would dominate the time to load a game.
    facts_by_head: dict[str, Tuples] = {"(" + name: {} for name in PREDICATES}
    pieces = text.split(")")
    pieces.pop()  # the text after the section
    inside_number = False
    inside_not = False
    for piece in pieces:
        words = piece.split()
        # "( name" with a blank is the same as "(name".
        if words and words[0] == "(":
            words[:2] = ["".join(words[:2])]
        head = words[0] if words else ""
        tuples = facts_by_head.get(head)
        if tuples is not None:
            tuples[tuple(words[1:])] = None
        elif not head:  # closes (not ...) or the section
            inside_not = False
        # The text between the two parentheses of (= (total-cost) 0).
        elif head[0] != "(":
            if not inside_number or len(words) != 1:
                raise InputError(
                    f"cannot read {head!r} in (:init, a fact is (name thing ...)", key=path
                )
            inside_number = False
        elif head == "(=":
            inside_number = True
        elif head == "(not":
            inside_not = True
        else:
            raise InputError(
                f"(:init has the fact {head} ...), which the ALFRED domain has not", key=path
            )
    if inside_number or inside_not:
        raise InputError("the (:init section of 'pddl_problem' is cut", key=path)
    return {head[1:]: tuples for head, tuples in facts_by_head.items() if tuples}


def _check_facts(predicate: str, tuples: Tuples, kinds: dict[str, str], path: str) -> Tuples:
    """Returns the facts of one predicate that can matter.

    A fact about a thing of another kind than in the rules (an openable object that is no
    receptacle) is left out, as no rule tests it. Where the rules say `object`, which in PDDL
    includes everything, it is refused.
    """
    argument_kinds = PREDICATES[predicate]
    for arguments in tuples:
        if len(arguments) != len(argument_kinds):
            raise InputError(
                f"({predicate} {' '.join(arguments)}) needs {len(argument_kinds)} argument(s)",
                key=path,
            )
    irrelevant_things: set[str] = set()
    for expected_kind, column in zip(argument_kinds, zip(*tuples)):
        # A thing is in many facts, and its kind is tested once.
        for thing in set(column):
            kind = kinds.get(thing)
            if kind is None:
                raise InputError(
                    f"({predicate} ...) names {thing!r}, which (:objects does not declare", key=path
                )
            if expected_kind in (kind, "any"):
                continue
            if expected_kind == "object":
                raise InputError(
                    f"({predicate} ...) needs an object, but {thing!r} is a {kind}", key=path
                )
            irrelevant_things.add(thing)
    if not irrelevant_things:
        return tuples
    return {arguments: None for arguments in tuples if irrelevant_things.isdisjoint(arguments)}


def parse_expression(text: str) -> Expression:
    """Reads a text's first parenthesised expression as a nested list.

    Raises:
      ValueError: the text ends before the expression.
    """
    stack: list[Expression] = [[]]
    for word in text.replace("(", " ( ").replace(")", " ) ").replace("?", " ?").split():
        if word == "(":
            expression: Expression = []
            stack[-1].append(expression)
            stack.append(expression)
        elif word == ")":
            stack.pop()
            # The first expression is complete; what follows is not read.
            if len(stack) == 1:
                break
        else:
            stack[-1].append(word)
    first = stack[0][0] if len(stack) == 1 and stack[0] else None
    if not isinstance(first, list):
        raise ValueError("a parenthesis is missing")
    return first
