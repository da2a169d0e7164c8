"""Formulas against Python's exact fractions, and the solver against all formulas there are."""

import itertools
import random
from fractions import Fraction

import pytest

from gigpo_jax.envs.cards.arithmetic import (
    can_make,
    evaluate,
    evaluate_python,
    find_completion,
    list_values,
)


def exact(formula: list[str]) -> Fraction | None:
    """The value by Python's parser with fractions; digits do not join, ** and // are errors."""
    text = " ".join(f"Fraction({symbol})" if symbol.isdigit() else symbol for symbol in formula)
    if "* *" in text or "/ /" in text:
        return None
    try:
        result = eval(text, {"Fraction": Fraction})
    except (SyntaxError, TypeError, ZeroDivisionError):
        return None
    return result if isinstance(result, Fraction) else None


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_the_value_of_random_formulas_is_that_of_exact_arithmetic() -> None:
    rng = random.Random(0)
    valid_count = 0
    for _ in range(20_000):
        formula = [
            rng.choice(("1", "2", "3", "10", "+", "-", "*", "/", "(", ")"))
            for _ in range(rng.randint(0, 7))
        ]
        expected = exact(formula)
        assert evaluate(formula) == expected, formula
        valid_count += expected is not None
    assert valid_count > 500


@pytest.mark.parametrize(
    ("text", "strict", "python"),
    [
        ("8 / ( 3 - 8 / 3 )", 24, 23.99999999999999),  # a quotient is a float in Python
        ("2 4", None, 24),
        ("1 0", None, 10),
        ("2 * * 3", None, 8),
        ("7 / / 2", None, 3),
        ("- ( 1 - 5 ) * 6", 24, 24),
        ("8 / ( 4 - 4 )", None, None),
        ("10 * * 10 * * 10", None, None),  # would fill the memory
        ("( 1 ) ( 2 )", None, None),
        ("", None, None),
        ("( ( 1", None, None),
        ("( )", None, None),
        ("* 3", None, None),
        ("3 *", None, None),
    ],
)
def test_the_quirks_of_python_count_only_in_its_own_arithmetic(
    text: str, strict: int | None, python: float | None
) -> None:
    assert evaluate(text.split()) == strict
    assert evaluate_python(text.split()) == python


def test_a_formula_of_any_length_has_an_answer() -> None:
    for formula in (
        ["("] * 5000,
        ["-"] * 5000 + ["3"],
        ["1", "+"] * 5000,
        ["9", "*", "*"] * 300 + ["9"],
    ):
        assert evaluate(formula) in (None, 3)
        assert evaluate_python(formula) in (None, 3)


def all_values(numbers: tuple[Fraction, ...], operators: str) -> set[Fraction]:
    """Every value, by joining any two numbers until one is left."""
    if len(numbers) == 1:
        return {numbers[0]}
    values = set()
    for i, j in itertools.permutations(range(len(numbers)), 2):
        rest = [number for place, number in enumerate(numbers) if place not in (i, j)]
        a = numbers[i]
        b = numbers[j]
        for symbol in operators:
            if symbol == "/" and b == 0:
                continue
            joined = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else a}[symbol]
            values |= all_values((*rest, joined), operators)
    return values


@pytest.mark.parametrize("operators", ["+*", "+-*/"])
def test_the_solver_finds_every_value_and_nothing_else(operators: str) -> None:
    rng = random.Random(1)
    for count in (1, 2, 3, 3, 3):
        numbers = tuple(sorted(rng.randint(1, 10) for _ in range(count)))
        assert list_values(numbers, operators) == all_values(
            tuple(map(Fraction, numbers)), operators
        )
    assert 24 in all_values(tuple(map(Fraction, (3, 3, 8, 8))), operators) or operators == "+*"
    assert 24 in list_values((3, 3, 8, 8), operators) or operators == "+*"


def test_as_many_deals_make_24_as_published() -> None:
    """73% of four cards from ace to king; faces count 10."""
    rng = random.Random(0)
    deals = [tuple(sorted(min(rng.randint(1, 13), 10) for _ in range(4))) for _ in range(150)]
    for numbers in itertools.combinations_with_replacement(range(1, 7), 3):
        for target, operators in itertools.product((7, 12, 24), ("+*", "+-*/")):
            assert can_make(numbers, target, operators) == (
                target in list_values(numbers, operators)
            ), (
                numbers,
                target,
            )
    assert sum(can_make(deal, 24, "+-*/()") for deal in deals) / 150 == pytest.approx(
        0.73, abs=0.08
    )


def test_a_completion_is_the_shortest_one() -> None:
    """Against all strings of symbols, for three numbers and any beginning."""
    rng = random.Random(2)
    solved = 0
    for _ in range(40):
        numbers = tuple(sorted(rng.choice((1, 2, 3, 6)) for _ in range(3)))
        begun = rng.choice(
            (
                [],
                [str(numbers[0])],
                ["("],
                [str(numbers[1]), "-"],
                ["(", str(numbers[2]), "+"],
                ["1", "1"],
            )
        )
        unused_numbers = list(numbers)
        for symbol in begun:
            if symbol.isdigit() and int(symbol) in unused_numbers:
                unused_numbers.remove(int(symbol))
        target = rng.choice((1, 4, 6, 9, 12))
        symbols = find_completion(begun, tuple(unused_numbers), target, "+-*/()")
        shortest = shortest_by_trying(begun, unused_numbers, target, 9 - len(begun))
        assert (
            None if symbols is None or len(symbols) > 9 - len(begun) else len(symbols)
        ) == shortest, (
            begun,
            unused_numbers,
            target,
        )
        if symbols is not None:
            assert evaluate([*begun, *symbols]) == target
            assert sorted(symbol for symbol in symbols if symbol.isdigit()) == sorted(
                map(str, unused_numbers)
            )
        solved += symbols is not None
    assert 10 < solved < 40


def test_a_completion_without_parentheses_is_preferred() -> None:
    for numbers, target, symbols in (
        ((2, 3, 6), 6, "3+6/2"),
        ((2, 4, 8), 8, "4+8/2"),
        ((2, 8, 8), 32, "8*8/2"),
    ):
        assert find_completion([], numbers, target, "+-*/()") == tuple(symbols)


def shortest_by_trying(begun: list[str], left: list[int], target: int, most: int) -> int | None:
    """Plain enumeration, breadth first, of numbers, operators and parentheses."""
    front: list[tuple[list[str], tuple[int, ...]]] = [(begun, tuple(left))]
    for length in range(most + 1):
        if any(not rest and evaluate(formula) == target for formula, rest in front):
            return length
        ahead = []
        for formula, rest in front:
            operand = not formula or formula[-1] in "+-*/("
            symbols = [*map(str, set(rest)), "("] if operand else [*"+-*/", ")"]
            for symbol in symbols:
                if symbol == ")" and formula.count("(") <= formula.count(")"):
                    continue
                if symbol == "(" and (formula.count("(") > len(begun) + 1 or not rest):
                    continue
                if symbol in "+-*/" and not rest:
                    continue
                numbers = list(rest)
                if symbol.isdigit():
                    numbers.remove(int(symbol))
                ahead.append(([*formula, symbol], tuple(numbers)))
        front = ahead
    return None
