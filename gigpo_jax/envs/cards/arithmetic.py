"""Formulas of points games: their values, and the fewest symbols that complete one.

A formula is a sequence of symbols: numbers, + - * / and parentheses.
"""

import ast
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

Numbers = tuple[int, ...]  # in ascending order
Symbols = tuple[str, ...]
# An open expression: the sum so far, the term so far, and the operator that waits for an operand (None: none does).
_Frame = tuple[Fraction, Fraction, str | None]
_Frames = tuple[_Frame, ...]  # one for each open parenthesis, the innermost last
_FRESH: _Frame = (Fraction(0), Fraction(1), "*")
_MOST_BITS = 4096  # of a power in Python's arithmetic
_PYTHON: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def value(formula: Sequence[str]) -> Fraction | None:
    """The exact value of a formula; None if it is malformed, also where two numbers stand side by side."""
    frames: _Frames | None = (_FRESH,)
    for symbol in formula:
        frames = frames and _read(frames, symbol)
    if not frames or len(frames) > 1 or frames[0][2] is not None:
        return None
    return frames[0][0] + frames[0][1]


def _read(frames: _Frames, symbol: str) -> _Frames | None:
    """The frames after one more symbol; None if it cannot stand there."""
    outer, (total, term, waiting) = frames[:-1], frames[-1]
    if symbol == ")":
        return _operand(outer, total + term) if waiting is None and outer else None
    if symbol in "+-*/":
        if waiting is None:
            sums = {"+": (total + term, Fraction(1), "*"), "-": (total + term, Fraction(-1), "*")}
            return (*outer, sums.get(symbol, (total, term, symbol)))
        signs = {"+": term, "-": -term}
        return (*outer, (total, signs[symbol], waiting)) if symbol in signs else None
    if waiting is None:
        return None
    return (*frames, _FRESH) if symbol == "(" else _operand(frames, Fraction(int(symbol)))


def _operand(frames: _Frames, number: Fraction) -> _Frames | None:
    total, term, waiting = frames[-1]
    if waiting == "/" and number == 0:
        return None
    return (*frames[:-1], (total, term / number if waiting == "/" else term * number, None))


def python_value(formula: Sequence[str]) -> Any:
    """What Python's `eval` makes of a formula, as in the public environments: digits join, ** and // have a meaning,
    quotients are floats. None if it raises, or for a power that is too large to compute.
    """
    try:
        return _python(ast.parse("".join(formula), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _python(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=inner):
            return -_python(inner) if isinstance(sign, ast.USub) else _python(inner)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, exponent = _python(left), _python(right)
            if abs(base) > 1 and abs(exponent) * abs(base).__ceil__().bit_length() > _MOST_BITS:
                raise OverflowError
            return base**exponent
        case ast.BinOp(left=left, op=symbol, right=right) if type(symbol) in _PYTHON:
            return _PYTHON[type(symbol)](_python(left), _python(right))
    raise ValueError(f"not a number: {ast.dump(node)}")


@functools.lru_cache(maxsize=4096)
def reachable(numbers: Numbers, operators: str) -> frozenset[Fraction]:
    """The values of all formulas that use every number once, with any parentheses."""
    if len(numbers) == 1:
        return frozenset((Fraction(numbers[0]),))
    found = set()
    for left, right in _splits(numbers):
        for one in reachable(left, operators) if left and right else ():
            for other in reachable(right, operators):
                found |= {one + other, one * other}
                if "-" in operators:
                    found.add(one - other)
                if "/" in operators and other:
                    found.add(one / other)
    return frozenset(found)


@functools.lru_cache(maxsize=4096)
def makes(numbers: Numbers, target: int, operators: str) -> bool:
    """Whether a formula with every number once has the target's value; `target` is not 0."""
    for left, right in _splits(numbers):
        others = reachable(right, operators) if left and right else frozenset()
        for one in reachable(left, operators) if others else ():
            missing = [target - one, target / one if one else target - one]
            missing += [one - target] * ("-" in operators) + [one / target] * ("/" in operators and one != 0)
            if not others.isdisjoint(missing):
                return True
    return False


def completion(formula: Sequence[str], left: Numbers, target: int, operators: str) -> Symbols | None:
    """The fewest symbols, signs apart, that make a formula with every number reach the target; None if none do.

    Args:
      formula: the symbols so far.
      left: the numbers that are not in it yet, in ascending order.
      target: the value to reach.
      operators: of + - * / ( ).
    """
    frames: _Frames | None = (_FRESH,)
    for symbol in formula:
        frames = frames and _read(frames, symbol)
    return _complete(frames, left, Fraction(target), operators) if frames else None


@functools.lru_cache(maxsize=1 << 14)
def _complete(frames: _Frames, left: Numbers, target: Fraction, operators: str) -> Symbols | None:
    """Closes the innermost parenthesis after some of the numbers, then continues outside."""
    if len(frames) == 1:
        return _endings(frames[0], left, operators).get(target)
    best: Symbols | None = None
    for inside, outside in _splits(left):
        for number, symbols in _endings(frames[-1], inside, operators).items():
            after = _operand(frames[:-1], number)
            rest = _complete(after, outside, target, operators) if after else None
            if rest is not None and (best is None or len(symbols) + 1 + len(rest) < len(best)):
                best = (*symbols, ")", *rest)
    return best


@functools.lru_cache(maxsize=1 << 14)
def _endings(frame: _Frame, left: Numbers, operators: str) -> dict[Fraction, Symbols]:
    """Value -> the fewest symbols that end an open expression with this value and use every number."""
    total, term, waiting = frame
    found: dict[Fraction, Symbols] = {}
    if waiting is None and not left:
        return {total + term: ()}
    steps: list[tuple[_Frames | None, Numbers, Symbols]]
    if waiting is None:
        steps = [(_read((frame,), symbol), left, (symbol,)) for symbol in operators if symbol in "+-*/"]
    else:
        steps = [
            (_operand((frame,), number), outside, symbols)
            for inside, outside in _splits(left)
            if inside and (outside or len(inside) == 1 or frame != _FRESH)  # no parentheses around everything
            for number, symbols in _operands(inside, operators).items()
        ]
    for after, rest, symbols in steps:
        for number, ending in _endings(after[0], rest, operators).items() if after else ():
            if number not in found or len(symbols) + len(ending) < len(found[number]):
                found[number] = symbols + ending
    return found


def _operands(numbers: Numbers, operators: str) -> dict[Fraction, Symbols]:
    """Value -> the fewest symbols of an operand of these numbers: a number, or an expression in parentheses."""
    if len(numbers) == 1:
        return {Fraction(numbers[0]): (str(numbers[0]),)}
    if "(" not in operators:
        return {}
    return {number: ("(", *symbols, ")") for number, symbols in _endings(_FRESH, numbers, operators).items()}


@functools.cache
def _splits(numbers: Numbers) -> tuple[tuple[Numbers, Numbers], ...]:
    """All ways to split numbers into two parts, empty ones included."""
    places = range(len(numbers))
    chosen = (set(some) for size in range(len(numbers) + 1) for some in itertools.combinations(places, size))
    pairs = (
        (tuple(numbers[p] for p in places if p in some), tuple(numbers[p] for p in places if p not in some))
        for some in chosen
    )
    return tuple(dict.fromkeys(pairs))
