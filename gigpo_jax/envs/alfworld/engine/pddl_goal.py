"""Recognises the goal formula of a game; each of the six task types has one.

The order and nesting of conjuncts, repetition and the names of variables do not matter. Games with any other formula
need the official engine.
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
        _PLACED, "(exists (?p - object) (and (inreceptacle ?p ?r) (objecttype ?p OBJECT) (not (= ?o ?p))))"
    ),
    "look_at_obj_in_light": """(and
        (exists (?o - object ?a - agent) (and (objecttype ?o OBJECT) (holds ?a ?o)))
        (exists (?t - object ?r - receptacle ?a - agent ?l - location) (and
            (objecttype ?t LAMP) (toggleable ?t) (istoggled ?t)
            (inreceptacle ?t ?r) (receptacleatlocation ?r ?l) (atlocation ?a ?l))))""",
}

_Fact = tuple[str, ...]


def read_goal(formula: Expression) -> Goal | None:
    """The task of a goal formula (in lower case), its types without "type"; None if the formula is none of the six."""
    try:
        facts = _normal_form(formula)
    except (IndexError, TypeError, ValueError):
        return None
    for task_type, template in _KNOWN.items():
        types = _types(template, facts)
        if types is not None:
            return Goal(task_type, types["OBJECT"], types.get("RECEPTACLE", ""), types.get("LAMP", ""))
    return None


def _types(template: frozenset[_Fact], facts: frozenset[_Fact]) -> dict[str, str] | None:
    """Upper-case word of a template -> the type in the formula; None if they differ otherwise."""
    types: dict[str, str] = {}
    asked = {fact[:2]: fact[2] for fact in template if fact[-1].isupper()}
    for fact in facts:
        if fact[:2] in asked and fact[-1].endswith("type"):
            types.setdefault(asked[fact[:2]], fact[-1].removesuffix("type"))
    expected = {(*fact[:2], f"{types.get(fact[2], '')}type") if fact[:2] in asked else fact for fact in template}
    return types if expected == facts else None


def _normal_form(formula: Expression) -> frozenset[_Fact]:
    """The facts of a formula of `and`, `exists` and `not =`; raises for one with anything else.

    Variables are named by their kind and by their place among those of the kind, sorted by the predicates on them.
    """
    kinds: dict[str, str] = {}
    facts: set[_Fact] = set()
    _collect(formula, {}, kinds, facts)
    uses = {variable: sorted(fact[0] for fact in facts if variable in fact) for variable in kinds}
    names: dict[str, str] = {}
    for kind in set(kinds.values()):
        of_kind = sorted((variable for variable in kinds if kinds[variable] == kind), key=lambda name: uses[name])
        names |= {variable: f"{kind}{place}" for place, variable in enumerate(of_kind)}
    renamed = ((fact[0], *(names.get(word, word) for word in fact[1:])) for fact in facts)
    return frozenset((fact[0], *sorted(fact[1:])) if fact[0] == "differ" else fact for fact in renamed)


def _collect(formula: Expression, names: dict[str, str], kinds: dict[str, str], facts: set[_Fact]) -> None:
    """Adds the facts of a formula, and its variables under unique names; raises if it is no conjunction of facts."""
    head, rest = formula[0], formula[1:]
    if head == "and":
        for part in rest:
            if isinstance(part, str):
                raise ValueError(part)
            _collect(part, names, kinds, facts)
    elif head == "exists":
        variables, body = rest
        if isinstance(variables, str) or isinstance(body, str) or len(variables) % 3:
            raise ValueError(rest)
        for variable, dash, kind in zip(variables[::3], variables[1::3], variables[2::3], strict=True):
            if dash != "-" or not isinstance(kind, str):
                raise ValueError(variables)
            names = {**names, str(variable): f"?{len(kinds)}"}
            kinds[names[str(variable)]] = kind
        _collect(body, names, kinds, facts)
    else:
        if head == "not":
            (inner,) = rest
            if inner[0] != "=":
                raise ValueError(formula)
            head, rest = "differ", list(inner[1:])
        words = [str(head), *(names.get(word, word) for word in rest if isinstance(word, str))]
        if len(words) != 1 + len(rest):
            raise ValueError(formula)
        facts.add(tuple(words))


_KNOWN = {task_type: _normal_form(parse_expression(text)) for task_type, text in _TEMPLATES.items()}
