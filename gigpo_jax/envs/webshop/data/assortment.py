"""The vocabulary of generated catalogues (`assortment.json`): products and their descriptions."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shelf:
    """One kind of product."""

    category: str  # the department
    query: str  # the search for this kind
    path: str  # the product category, from general to special
    things: tuple[str, ...]  # names of products
    attributes: tuple[str, ...]  # possible annotations
    # possible options; "size of shoes" is an option called size with its own values
    options: tuple[str, ...]
    price: tuple[float, float]  # usual lowest and highest price, in dollars


@dataclass(frozen=True)
class Assortment:
    """The vocabulary."""

    shelves: tuple[Shelf, ...]  # the kinds of products
    values: dict[str, tuple[str, ...]]  # option -> its values
    # Option -> values with a colour word inside another word; a synthetic goal with such a value
    # cannot be met (see `reward.py`), as in the genuine catalogue.
    traps: dict[str, tuple[str, ...]]
    brands: tuple[str, ...]  # brands, looks, endings: parts of titles
    looks: tuple[str, ...]
    endings: tuple[str, ...]
    odd_endings: tuple[str, ...]  # with unusual characters
    praise: tuple[str, ...]  # praise, occasions: parts of descriptions
    occasions: tuple[str, ...]
    human_requests: tuple[str, ...]  # templates with places for attributes, thing and options


@functools.cache
def load_assortment() -> Assortment:
    """The vocabulary of `assortment.json`."""
    text = (Path(__file__).parent / "assortment.json").read_text(encoding="utf-8")
    data: dict[str, Any] = _freeze_lists(json.loads(text))
    shelves = tuple(Shelf(**shelf) for shelf in data.pop("shelves"))
    return Assortment(shelves=shelves, **data)


def _freeze_lists(value: Any) -> Any:
    """A JSON value with tuples for lists."""
    if isinstance(value, dict):
        return {key: _freeze_lists(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return tuple(_freeze_lists(inner) for inner in value)
    return value
