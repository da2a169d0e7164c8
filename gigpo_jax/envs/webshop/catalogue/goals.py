"""Goals of WebShop: templates, and the random draws of prices and price caps.

Goals are made from templates (a human annotation, or a product with a synthetic instruction and the combinations of
its option values) and draws, which come from one `random.Random` in the original's order: all prices in load order,
then the caps in the order of the templates. The list is then shuffled with a seed of its own.
"""

import functools
import itertools
import operator
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigpo_jax.envs.webshop.catalogue.sources import Product
from gigpo_jax.errors import InputError

KINDS = ("human", "synthetic")
NO_CAP = 1000000
TEST_GOALS = 500
_SHUFFLE_SEED = 233
_PRICE_STEPS = tuple(10.0 * i for i in range(1, 100))


@dataclass(frozen=True, slots=True)
class Goal:
    """The product to buy."""

    id: str  # stable name: kind, asin, and the number of the annotation or of the combination
    asin: str  # this and the next four: of the product it was made from
    category: str
    query: str
    name: str
    product_category: str
    instruction: str  # the task in words
    attributes: tuple[str, ...]  # that the product must have
    options: tuple[str, ...] | dict[str, str]  # to choose: values (human goals) or name -> value (synthetic goals)
    price_cap: float  # in dollars; `NO_CAP` for none
    weight: float  # of random draws


@dataclass(frozen=True)
class Template:
    """The source of the goals of one annotation (human) or of one product (synthetic)."""

    row: int  # the product
    number: int  # of the annotation among those of its product; 0 for synthetic instructions
    instruction: str  # its text, without a price
    attributes: tuple[str, ...]  # that the product must have; never empty
    options: tuple[str, ...] | None  # the values of a human annotation; None for a synthetic one (all combinations)
    goals: int  # their number


def human_templates(row: int, asin: str, annotations: Mapping[str, Any]) -> Iterator[Template]:
    """The human goals of a product; those without attributes are left out."""
    for number, annotation in enumerate(annotations.get(asin) or ()):
        where = f"items_human_ins.json: annotation {number} of {asin!r}"
        for key in ("instruction", "instruction_attributes", "instruction_options"):
            if not isinstance(annotation, dict) or key not in annotation:
                raise InputError(f"{where}: has no {key!r}; get the file again or remove the annotation")
        attributes = annotation["instruction_attributes"]
        if not attributes:
            continue
        options = annotation["instruction_options"]
        texts = (annotation["instruction"], *attributes, *options)
        if not (isinstance(attributes, list) and isinstance(options, list) and all(isinstance(t, str) for t in texts)):
            raise InputError(f"{where}: needs a text 'instruction' and lists of texts for its attributes and options")
        yield Template(row, number, annotation["instruction"].strip("."), tuple(attributes), tuple(options), 1)


def synthetic_template(row: int, product: Product, annotation: Any) -> Template | None:
    """The template of a product's synthetic instruction; None if it has none."""
    if not isinstance(annotation, dict) or annotation.get("instruction") is None:
        return None
    attributes = annotation.get("instruction_attributes")
    if not isinstance(attributes, list) or not attributes:
        attributes = [None]
    if not all(isinstance(text, str) for text in (annotation["instruction"], *attributes)):
        raise InputError(
            f"items_ins_v2: {product.asin!r} has an 'instruction' without a list of 'instruction_attributes'; "
            "add the list or make the instruction null"
        )
    goals = 1
    for values in product.options.values():
        goals *= len(values)
    return Template(row, 0, annotation["instruction"], tuple(attributes), None, goals)


def draw_prices(pricing: Iterable[Sequence[float]], rng: random.Random) -> np.ndarray:
    """The price of each product, [P] f64; uniform in its range."""
    return np.array([p[0] if len(p) == 1 else rng.uniform(*p) for p in pricing], dtype=np.float64)


def draw_caps(prices: Iterable[float], rng: random.Random) -> np.ndarray:
    """A cap above each price, [M] f64; `NO_CAP` where fewer than two steps remain."""
    caps = []
    for price in prices:
        first = next((i for i, step in enumerate(_PRICE_STEPS) if step > price), len(_PRICE_STEPS))
        steps = list(_PRICE_STEPS[first : first + 4])
        caps.append(max(rng.sample(steps, 2)) if len(steps) >= 2 else NO_CAP)
    return np.array(caps, dtype=np.float64)


def shuffled(count: int) -> np.ndarray:
    """The order of the goal list, [G] i64."""
    order = list(range(count))
    random.Random(_SHUFFLE_SEED).shuffle(order)
    return np.array(order, dtype=np.int64)


def weights(attributes: Sequence[tuple[str, ...]], goals: Sequence[int]) -> np.ndarray:
    """The weight of each synthetic template's goals, [M] f64: higher for rare attributes."""
    counts: dict[str, int] = {}
    for names, number in zip(attributes, goals):
        for name in names:
            counts[name] = counts.get(name, 0) + number
    out = np.zeros(len(goals))
    for row, (names, number) in enumerate(zip(attributes, goals)):
        if number:
            # Not `sum`: since Python 3.12 it compensates rounding, and the last digits differ from the original's.
            out[row] = functools.reduce(operator.add, (1.0 / counts[name] for name in names)) / len(names)
    return out


def combination(options: Mapping[str, Sequence[str]], index: int) -> dict[str, str]:
    """Combination number `index` of the option values: names sorted, the last name varies fastest."""
    names = sorted(options)
    chosen: dict[str, str] = {}
    for name in reversed(names):
        index, position = divmod(index, len(options[name]))
        chosen[name] = options[name][position]
    return {name: chosen[name] for name in names}


def price_text(cap: float) -> str:
    return "" if cap >= NO_CAP else f", and price lower than {cap:.2f} dollars"


def synthetic_text(instruction: str, options: Mapping[str, str], cap: float) -> str:
    listed = ", and ".join(f"{name}: {value}" for name, value in options.items())
    return f"{instruction}{f' with {listed}' if listed else ''}{price_text(cap)}"


def distinct(keys: Iterable[Any]) -> np.ndarray:
    """Positions of the first of each group of equal keys, [K] i64."""
    seen: set[Any] = set()
    first = [i for i, key in enumerate(keys) if not (key in seen or seen.add(key))]  # type: ignore[func-returns-value]
    return np.array(first, dtype=np.int64)


def test_size(goals: int) -> int:
    return min(TEST_GOALS, goals // 2)


def combinations(options: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """All combinations, in the order of `combination`."""
    return itertools.product(*(options[name] for name in sorted(options)))
