"""Goals of WebShop: templates, and the random draws of prices and price caps.

Goals are made from templates (a human annotation, or a product with a synthetic instruction and the
combinations of its option values) and draws, which come from one `random.Random` in the original's
order: all prices in load order, then the caps in the order of the templates. The list is then
shuffled with a seed of its own.
"""

import bisect
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.webshop.catalogue.sources import Product

KINDS = ("human", "synthetic")
NO_CAP = 1000000
TEST_GOALS = 500
_SHUFFLE_SEED = 233
_PRICE_STEPS = tuple(10.0 * i for i in range(1, 100))


@dataclass(frozen=True, slots=True)
class ShoppingGoal:
    """The product to buy."""

    id: str  # stable name: kind, asin, and the number of the annotation or of the combination
    asin: str  # this and the next four: of the product it was made from
    category: str
    query: str
    name: str
    product_category: str
    instruction: str  # the task in words
    attributes: tuple[str, ...]  # attributes that the product must have
    # options to choose: values (human goals) or name -> value (synthetic goals)
    options: tuple[str, ...] | dict[str, str]
    price_cap: float  # in dollars; `NO_CAP` for none
    weight: float  # of random draws


@dataclass(frozen=True)
class Template:
    """The source of the human goals of one annotation, or the synthetic goals of one product."""

    row: int  # row of the product
    number: int  # of the annotation in its product's list; 0 for synthetic instructions
    instruction: str  # its text, without a price
    attributes: tuple[str, ...]  # attributes that the product must have; never empty
    # the values of a human annotation; None for a synthetic one (all combinations)
    options: tuple[str, ...] | None
    goals: int  # number of its goals


def human_templates(row: int, asin: str, annotations: Mapping[str, Any]) -> Iterator[Template]:
    """Yields the templates of a product's human goals, without goals that have no attributes."""
    for number, annotation in enumerate(annotations.get(asin) or ()):
        place = f"items_human_ins.json: annotation {number} of {asin!r}"
        for key in ("instruction", "instruction_attributes", "instruction_options"):
            if not isinstance(annotation, dict) or key not in annotation:
                raise InputError(
                    f"has no {key!r}", key=place, fix="get the file again or remove the annotation"
                )
        instruction = annotation["instruction"]
        attributes = annotation["instruction_attributes"]
        options = annotation["instruction_options"]
        if not attributes:
            continue
        texts_valid = _is_text_list(attributes) and _is_text_list(options)
        if not isinstance(instruction, str) or not texts_valid:
            raise InputError(
                "needs a text 'instruction' and lists of texts for its attributes and options",
                key=place,
            )
        yield Template(
            row=row,
            number=number,
            instruction=instruction.strip("."),
            attributes=tuple(attributes),
            options=tuple(options),
            goals=1,
        )


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def synthetic_template(row: int, product: Product, annotation: Any) -> Template | None:
    """Returns the template of a product's synthetic instruction, if any."""
    if not isinstance(annotation, dict) or annotation.get("instruction") is None:
        return None
    instruction = annotation["instruction"]
    attributes = annotation.get("instruction_attributes")
    if not isinstance(instruction, str) or not attributes or not _is_text_list(attributes):
        raise InputError(
            f"{product.asin!r} has an 'instruction' without a list of 'instruction_attributes'",
            key="items_ins_v2",
            fix="add the list or make the instruction null",
        )
    goals = math.prod(len(values) for values in product.options.values())
    return Template(
        row=row,
        number=0,
        instruction=instruction,
        attributes=tuple(attributes),
        options=None,
        goals=goals,
    )


def draw_prices(pricing: Iterable[Sequence[float]], rng: random.Random) -> np.ndarray:
    """Draws each product's price, uniform in its range, [P] f64."""
    prices = []
    for price_range in pricing:
        # No draw for a single price: the original draws only for ranges.
        fixed = len(price_range) == 1
        prices.append(price_range[0] if fixed else rng.uniform(*price_range))
    return np.array(prices, dtype=np.float64)


def draw_caps(prices: Iterable[float], rng: random.Random) -> np.ndarray:
    """Draws a cap above each price, [M] f64; `NO_CAP` where fewer than two steps remain."""
    caps: list[float] = []
    for price in prices:
        # Right: a cap is above the price, never equal.
        first = bisect.bisect_right(_PRICE_STEPS, price)
        steps = _PRICE_STEPS[first : first + 4]
        # Two draws of which the upper one counts: the original uses up as many random numbers.
        caps.append(max(rng.sample(steps, 2)) if len(steps) >= 2 else NO_CAP)
    return np.array(caps, dtype=np.float64)


def shuffle_goals(count: int) -> np.ndarray:
    """The order of the goal list, [G] i64."""
    order = list(range(count))
    # The original's seed, so that equal draws give equal lists.
    random.Random(_SHUFFLE_SEED).shuffle(order)
    return np.array(order, dtype=np.int64)


def goal_weights(attributes: Sequence[tuple[str, ...]], goals: Sequence[int]) -> np.ndarray:
    """The weight of each synthetic template's goals, [M] f64; rare attributes weigh more."""
    counts: dict[str, int] = {}
    for names, number in zip(attributes, goals, strict=True):
        for name in names:
            counts[name] = counts.get(name, 0) + number
    weights = np.zeros(len(goals))
    for row, names in enumerate(attributes):
        if not goals[row]:
            continue
        # Not `sum`: since Python 3.12 it compensates rounding, and the last digits differ from
        # the original's.
        total = 0.0
        for name in names:
            total += 1.0 / counts[name]
        weights[row] = total / len(names)
    return weights


def option_combination(options: Mapping[str, Sequence[str]], index: int) -> dict[str, str]:
    """Combination number `index` of the option values, the last sorted name varying fastest."""
    names = sorted(options)
    values: dict[str, str] = {}
    for name in reversed(names):
        index, position = divmod(index, len(options[name]))
        values[name] = options[name][position]
    return {name: values[name] for name in names}


def option_combinations(options: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """All combinations, in the order of `option_combination`."""
    return itertools.product(*(options[name] for name in sorted(options)))


def price_text(cap: float) -> str:
    """Returns an instruction's end: its price cap; empty for none."""
    return "" if cap >= NO_CAP else f", and price lower than {cap:.2f} dollars"


def synthetic_text(instruction: str, options: Mapping[str, str], cap: float) -> str:
    """A synthetic instruction with its options and its price cap."""
    listed = ", and ".join(f"{name}: {value}" for name, value in options.items())
    option_text = f" with {listed}" if listed else ""
    return f"{instruction}{option_text}{price_text(cap)}"


def first_positions(keys: Iterable[Any]) -> np.ndarray:
    """Returns the first position of each distinct key, [K] i64."""
    positions: dict[Any, int] = {}
    for position, key in enumerate(keys):
        positions.setdefault(key, position)
    return np.array(list(positions.values()), dtype=np.int64)


def test_size(goals: int) -> int:
    """The number of test goals in a list of goals."""
    return min(TEST_GOALS, goals // 2)
