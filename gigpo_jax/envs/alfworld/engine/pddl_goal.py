"""Recognises the goal formula of a game; each of the six task types has one.

The order and nesting of conjuncts, repetition and the names of variables do not matter. Games with
any other formula need the official engine.
"""

from gigpo_jax.envs.alfworld.engine.pddl_problem import Expression, parse_expression
from gigpo_jax.envs.alfworld.tasks import Goal

_PLACED = "(inreceptacle ?o ?r) (objecttype ?o OBJECT) (receptacletype ?r RECEPTACLE)"
_PLACE = "(exists (?o - object ?r - receptacle) (and {} {}))"
_TEMPLATES = {
    "pick_and_place_simple": _PLACE.format(_PLACED, ""),
    "pick_clean_then_place_in_recep": _PLACE.format(_PLACED, "(cleanable ?o) (isclean ?o)"),
    "pick_heat_then_place_in_recep": _PLACE.format(_PLACED, "(heatable ?o) (ishot ?o)"),
    "pick_cool_then_place_in_recep": _PLACE.format(_PLACED, "(coolable ?o) (iscool ?o)"),
    "pick_two_obj_and_place": _PLACE.format(
        _PLACED,
        "(exists (?p - object) (and (inreceptacle ?p ?r) (objecttype ?p OBJECT) (not (= ?o ?p))))",
    ),
    "look_at_obj_in_light": """(and
        (exists (?o - object ?a - agent) (and (objecttype ?o OBJECT) (holds ?a ?o)))
        (exists (?t - object ?r - receptacle ?a - agent ?l - location) (and
            (objecttype ?t LAMP) (toggleable ?t) (istoggled ?t)
            (inreceptacle ?t ?r) (receptacleatlocation ?r ?l) (atlocation ?a ?l))))""",
}

_Fact = tuple[str, ...]  # predicate and arguments


def read_goal(formula: Expression) -> Goal | None:
    """Reads the task from a goal formula in lower case.

    Returns:
      The task, its types without "type"; None for a formula that is none of the six.
    """
    try:
        facts = _normalize(formula)
    except (IndexError, TypeError, ValueError):
        return None
    for task_type, template in _NORMAL_TEMPLATES.items():
        types = _match_types(template, facts)
        if types is not None:
            return Goal(
                task_type, types["OBJECT"], types.get("RECEPTACLE", ""), types.get("LAMP", "")
            )
    return None


def _match_types(template: frozenset[_Fact], facts: frozenset[_Fact]) -> dict[str, str] | None:
    """Finds the types for a template's upper-case words; None if other words differ."""
    # (predicate, variable) -> the upper-case word in the place of the type.
    placeholders = {fact[:2]: fact[2] for fact in template if fact[-1].isupper()}
    types: dict[str, str] = {}
    for fact in facts:
        if fact[:2] in placeholders and fact[-1].endswith("type"):
            # Sets have no order, but none is needed: if a word gets two types, one is taken and the
            # other makes the comparison fail.
            types.setdefault(placeholders[fact[:2]], fact[-1].removesuffix("type"))
    expected_facts: set[_Fact] = set()
    for fact in template:
        if fact[:2] in placeholders:
            fact = (*fact[:2], f"{types.get(fact[2], '')}type")
        expected_facts.add(fact)
    return types if expected_facts == facts else None


def _normalize(formula: Expression) -> frozenset[_Fact]:
    """Collects a formula's facts, with variables renamed.

    The formula has `and`, `exists` and `not =`; raises for any other. Variables are named by their
    kind and by their rank in the kind, sorted by the predicates on them.
    """
    kinds: dict[str, str] = {}
    facts: set[_Fact] = set()
    _collect_facts(formula, {}, kinds, facts)

    predicates: dict[str, list[str]] = {}
    for variable in kinds:
        # Variables are told apart by what is said about them, which does not depend on their names.
        predicates[variable] = sorted(fact[0] for fact in facts if variable in fact)
    new_names: dict[str, str] = {}
    for kind in set(kinds.values()):
        variables = [variable for variable in kinds if kinds[variable] == kind]
        # Equal predicates keep the order of the formula; in the six goals these variables can be
        # swapped.
        variables.sort(key=predicates.__getitem__)
        for rank, variable in enumerate(variables):
            new_names[variable] = f"{kind}{rank}"

    normal_facts = set()
    for predicate, *arguments in facts:
        words = [new_names.get(word, word) for word in arguments]
        if predicate == "differ":  # symmetric
            words.sort()
        normal_facts.add((predicate, *words))
    return frozenset(normal_facts)


def _collect_facts(
    formula: Expression, names: dict[str, str], kinds: dict[str, str], facts: set[_Fact]
) -> None:
    """Adds a formula's variables to `kinds`, by unique name, and its facts, with these names.

    `names` has the unique name of each variable in this scope. Raises if the formula is no
    conjunction of facts.
    """
    head = formula[0]
    operands = formula[1:]
    if head == "and":
        for operand in operands:
            if isinstance(operand, str):
                raise ValueError(operand)
            _collect_facts(operand, names, kinds, facts)
    elif head == "exists":
        variables, body = operands
        if isinstance(variables, str) or isinstance(body, str) or len(variables) % 3:
            raise ValueError(operands)
        # A copy: the variables end with the body of this quantifier.
        names = dict(names)
        for variable, dash, kind in zip(
            variables[::3], variables[1::3], variables[2::3], strict=True
        ):
            if dash != "-" or not isinstance(kind, str):
                raise ValueError(variables)
            unique_name = f"?{len(kinds)}"
            names[str(variable)] = unique_name
            kinds[unique_name] = kind
        _collect_facts(body, names, kinds, facts)
    elif head == "not":
        (equation,) = operands
        if equation[0] != "=":
            raise ValueError(formula)
        facts.add(_make_fact("differ", list(equation[1:]), names))
    else:
        facts.add(_make_fact(str(head), operands, names))


def _make_fact(predicate: str, arguments: Expression, names: dict[str, str]) -> _Fact:
    words = [predicate]
    for argument in arguments:
        if not isinstance(argument, str):
            raise ValueError(arguments)
        words.append(names.get(argument, argument))
    return tuple(words)


_NORMAL_TEMPLATES = {
    task_type: _normalize(parse_expression(text)) for task_type, text in _TEMPLATES.items()
}
