"""Formulas of points games: their values, and the fewest symbols that complete one.

A formula is a sequence of symbols: numbers, + - * / and parentheses.
"""

import ast
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

Numbers = tuple[int, ...]  # in ascending order
Symbols = tuple[str, ...]


class _Expression(NamedTuple):
    """An expression whose end is open.

    Attributes:
      total: Sum of the closed terms.
      term: Value of the open term.
      operator: Operator of the term that has no operand yet; None if all have theirs.
    """

    total: Fraction
    term: Fraction
    operator: str | None


_Expressions = tuple[_Expression, ...]  # one for each open parenthesis, the innermost last
# The empty expression: 0 + 1 * (an operand).
_EMPTY = _Expression(Fraction(0), Fraction(1), "*")
_MAX_POWER_BITS = 4096  # in Python's arithmetic: a larger power would fill the memory
_PYTHON_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def evaluate(formula: Sequence[str]) -> Fraction | None:
    """Computes a formula's exact value; None if malformed, such as two numbers side by side."""
    expressions = _read_formula(formula)
    if expressions is None or len(expressions) > 1 or expressions[0].operator is not None:
        return None
    return expressions[0].total + expressions[0].term


def _read_formula(formula: Sequence[str]) -> _Expressions | None:
    """Returns the open expressions after a formula; None if it cannot be continued."""
    expressions: _Expressions = (_EMPTY,)
    for symbol in formula:
        next_expressions = _add_symbol(expressions, symbol)
        if next_expressions is None:
            return None
        expressions = next_expressions
    return expressions


def _add_symbol(expressions: _Expressions, symbol: str) -> _Expressions | None:
    """Returns the expressions after one more symbol; None if the symbol cannot stand there."""
    outer = expressions[:-1]
    total, term, waiting_operator = expressions[-1]
    if symbol == ")":
        if waiting_operator is not None or not outer:
            return None
        return _add_operand(outer, total + term)
    if symbol in "+-*/":
        if waiting_operator is None:
            return (*outer, _add_operator(total, term, symbol))
        # After an operator + and - are signs, and * and / are errors.
        if symbol in "*/":
            return None
        sign = 1 if symbol == "+" else -1
        return (*outer, _Expression(total, sign * term, waiting_operator))
    if waiting_operator is None:
        return None
    if symbol == "(":
        return (*expressions, _EMPTY)
    return _add_operand(expressions, Fraction(int(symbol)))


def _add_operator(total: Fraction, term: Fraction, symbol: str) -> _Expression:
    if symbol == "+":
        return _Expression(total + term, Fraction(1), "*")
    if symbol == "-":
        return _Expression(total + term, Fraction(-1), "*")
    return _Expression(total, term, symbol)


def _add_operand(expressions: _Expressions, number: Fraction) -> _Expressions | None:
    """Returns the expressions after one more operand; None for a division by zero."""
    total, term, waiting_operator = expressions[-1]
    if waiting_operator != "/":
        return (*expressions[:-1], _Expression(total, term * number, None))
    if number == 0:
        return None
    return (*expressions[:-1], _Expression(total, term / number, None))


def evaluate_python(formula: Sequence[str]) -> Any:
    """Computes a formula as Python's `eval` does, which the public environments use.

    Digits join, ** and // have a meaning, and quotients are floats. None if it raises, or for a
    power that is too large to compute.
    """
    try:
        # A tree of known nodes, and no `eval`: the text comes from a policy.
        return _evaluate_node(ast.parse("".join(formula), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _evaluate_node(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate_node(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _evaluate_node(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _evaluate_power(_evaluate_node(left), _evaluate_node(right))
        case ast.BinOp(left=left, op=symbol, right=right) if type(symbol) in _PYTHON_OPERATORS:
            apply = _PYTHON_OPERATORS[type(symbol)]
            return apply(_evaluate_node(left), _evaluate_node(right))
    raise ValueError(f"not a number: {ast.dump(node)}")


def _evaluate_power(base: Any, exponent: Any) -> Any:
    # Estimated before it is computed: 9**9**9 would take all memory and time.
    bits = abs(exponent) * abs(base).__ceil__().bit_length()
    if abs(base) > 1 and bits > _MAX_POWER_BITS:
        raise OverflowError
    return base**exponent


@functools.lru_cache(maxsize=4096)
def list_values(numbers: Numbers, operators: str) -> frozenset[Fraction]:
    """Lists the values of all formulas with every number used once and any parentheses."""
    if len(numbers) == 1:
        return frozenset((Fraction(numbers[0]),))
    # Fractions: with floats 8 / (3 - 8 / 3) would not be 24.
    values: set[Fraction] = set()
    for first_numbers, second_numbers in _split_numbers(numbers):
        if not first_numbers or not second_numbers:
            continue
        # Both orders of the two sides are among the splits, so x - y and x / y suffice.
        pairs = itertools.product(
            list_values(first_numbers, operators), list_values(second_numbers, operators)
        )
        for x, y in pairs:
            values.add(x + y)
            values.add(x * y)
            if "-" in operators:
                values.add(x - y)
            if "/" in operators and y:
                values.add(x / y)
    return frozenset(values)


@functools.lru_cache(maxsize=4096)
def can_make(numbers: Numbers, target: int, operators: str) -> bool:
    """Tells whether a formula with every number used once makes the target, which is not 0."""
    # The last operation is solved for its second operand: a set lookup in place of the product of
    # both sets of values.
    for first_numbers, second_numbers in _split_numbers(numbers):
        if not first_numbers or not second_numbers:
            continue
        right_values = list_values(second_numbers, operators)
        for x in list_values(first_numbers, operators):
            if not right_values.isdisjoint(_list_partners(x, target, operators)):
                return True
    return False


def _list_partners(x: Fraction, target: int, operators: str) -> list[Fraction]:
    """Lists the numbers y for which x + y, x * y, x - y or x / y makes the target."""
    partners = [target - x]
    if x:
        partners.append(target / x)
    if "-" in operators:
        partners.append(x - target)
    if "/" in operators and x:
        partners.append(x / target)
    return partners


def find_completion(
    formula: Sequence[str], unused_numbers: Numbers, target: int, operators: str
) -> Symbols | None:
    """Finds the fewest symbols, without signs, that complete a formula; None if none do.

    Args:
      formula: Symbols so far.
      unused_numbers: Numbers that are not in it yet, in ascending order; all must be used.
      target: Value to reach.
      operators: Symbols beside the numbers, of + - * / ( ).
    """
    expressions = _read_formula(formula)
    if expressions is None:
        return None
    return _complete(expressions, unused_numbers, Fraction(target), operators)


@functools.lru_cache(maxsize=1 << 14)
def _complete(
    expressions: _Expressions, unused_numbers: Numbers, target: Fraction, operators: str
) -> Symbols | None:
    """Closes the innermost parenthesis after some of the numbers, then continues outside."""
    if len(expressions) == 1:
        return _find_endings(expressions[0], unused_numbers, operators).get(target)
    best: Symbols | None = None
    for numbers, later_numbers in _split_numbers(unused_numbers):
        for value, ending in _find_endings(expressions[-1], numbers, operators).items():
            outer = _add_operand(expressions[:-1], value)
            if outer is None:
                continue
            completion = _complete(outer, later_numbers, target, operators)
            if completion is None:
                continue
            symbols = (*ending, ")", *completion)
            # The first of equal lengths stays, so the expert does not depend on the order of sets.
            if best is None or len(symbols) < len(best):
                best = symbols
    return best


@functools.lru_cache(maxsize=1 << 14)
def _find_endings(
    expression: _Expression, unused_numbers: Numbers, operators: str
) -> dict[Fraction, Symbols]:
    """Finds the fewest symbols to end an expression with every number, by value."""
    if expression.operator is None and not unused_numbers:
        return {expression.total + expression.term: ()}
    endings: dict[Fraction, Symbols] = {}
    for next_expression, numbers, symbols in _list_steps(expression, unused_numbers, operators):
        for value, ending in _find_endings(next_expression, numbers, operators).items():
            length = len(symbols) + len(ending)
            if value not in endings or length < len(endings[value]):
                endings[value] = symbols + ending
    return endings


def _list_steps(
    expression: _Expression, unused_numbers: Numbers, operators: str
) -> Iterator[tuple[_Expression, Numbers, Symbols]]:
    """Lists the expressions after one more operator or operand, numbers left, and symbols."""
    if expression.operator is None:
        for symbol in operators:
            if symbol in "+-*/":
                total, term, _ = expression
                yield _add_operator(total, term, symbol), unused_numbers, (symbol,)
        return
    for numbers, later_numbers in _split_numbers(unused_numbers):
        if not numbers:
            continue
        # Parentheses around everything never help.
        if not later_numbers and len(numbers) > 1 and expression == _EMPTY:
            continue
        for value, symbols in _find_operands(numbers, operators).items():
            expressions = _add_operand((expression,), value)
            if expressions is not None:
                yield expressions[0], later_numbers, symbols


def _find_operands(numbers: Numbers, operators: str) -> dict[Fraction, Symbols]:
    """Finds the fewest symbols of a number or an expression in parentheses, by value."""
    if len(numbers) == 1:
        return {Fraction(numbers[0]): (str(numbers[0]),)}
    if "(" not in operators:
        return {}
    operands = {}
    for value, symbols in _find_endings(_EMPTY, numbers, operators).items():
        operands[value] = ("(", *symbols, ")")
    return operands


@functools.cache
def _split_numbers(numbers: Numbers) -> tuple[tuple[Numbers, Numbers], ...]:
    """Lists all ways to split numbers in two, each once, with an empty side too."""
    splits: dict[tuple[Numbers, Numbers], None] = {}  # a set that keeps its order
    for size in range(len(numbers) + 1):
        for indices in itertools.combinations(range(len(numbers)), size):
            chosen = tuple(numbers[index] for index in indices)
            rest = tuple(n for index, n in enumerate(numbers) if index not in indices)
            # Equal cards give equal splits: each is tried once.
            splits[chosen, rest] = None
    return tuple(splits)
