"""The vocabulary of generated catalogues (`assortment.json`): products and their descriptions."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shelf:
    """One kind of product.

    Attributes:
      category: the department.
      query: the search for this kind.
      path: the product category, from general to special.
      things: names of products.
      attributes: possible annotations.
      options: possible options; "size of shoes" is an option called size with its own values.
      price: usual lowest and highest price, in dollars.
    """

    category: str
    query: str
    path: str
    things: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price: tuple[float, float]


@dataclass(frozen=True)
class Assortment:
    """The vocabulary.

    Attributes:
      shelves: the kinds of products.
      values: option -> its values.
      traps: option -> values with a colour word inside another word; a synthetic goal with such a value cannot be met
        (see `reward.py`), as in the genuine catalogue.
      brands, looks, endings: parts of titles; odd_endings: some with unusual characters.
      praise, occasions: parts of descriptions.
      human_requests: templates with places for attributes, thing and options.
    """

    shelves: tuple[Shelf, ...]
    values: dict[str, tuple[str, ...]]
    traps: dict[str, tuple[str, ...]]
    brands: tuple[str, ...]
    looks: tuple[str, ...]
    endings: tuple[str, ...]
    odd_endings: tuple[str, ...]
    praise: tuple[str, ...]
    occasions: tuple[str, ...]
    human_requests: tuple[str, ...]


@functools.cache
def assortment() -> Assortment:
    """The vocabulary, read once."""
    data: dict[str, Any] = json.loads((Path(__file__).parent / "assortment.json").read_text(encoding="utf-8"))
    shelves = tuple(Shelf(**{key: _frozen(value) for key, value in shelf.items()}) for shelf in data.pop("shelves"))
    return Assortment(shelves=shelves, **{key: _frozen(value) for key, value in data.items()})


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(inner) for key, inner in value.items()}
    return tuple(value) if isinstance(value, list) else value
