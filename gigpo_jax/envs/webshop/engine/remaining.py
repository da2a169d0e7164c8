"""The fewest actions from any page to the best purchase for a goal, from full knowledge of the catalogue.

The best purchase has the highest score of all products and options. A search is one action and can be made on every
page. Some query finds the product among the first ten: the tests show that its title does, in the generated catalogue.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product

from gigpo_jax.envs.webshop.catalogue.catalogue import Catalogue
from gigpo_jax.envs.webshop.catalogue.sources import Product
from gigpo_jax.envs.webshop.engine import pages
from gigpo_jax.envs.webshop.engine.reward import matched_options, score
from gigpo_jax.envs.webshop.engine.session import Session, split_action

_BUTTONS = {what.lower() for what in (pages.SEARCH, pages.BACK, pages.PREVIOUS, pages.BUY, *pages.SUB_PAGES)}

Met = frozenset[int]  # which of the goal's options a value meets


@dataclass(frozen=True)
class Purchase:
    """A product that, with the right options, is the best purchase."""

    met: Mapping[str, Mapping[str, Met]]  # option name -> value that can be clicked -> what it meets
    needed: int  # how many of the goal's options must be met

    def clicks(self, chosen: Mapping[str, str]) -> int:
        """The fewest clicks from the chosen options (name -> value) to the needed ones."""
        now = {name: self.met.get(name, {}).get(value, Met()) for name, value in chosen.items()}
        return next(
            number
            for number in range(len(self.met) + 1)
            for changed in _changes(self.met, number)
            if len(_union((now | changed).values())) >= self.needed
        )


def _changes(met: Mapping[str, Mapping[str, Met]], number: int) -> Iterator[dict[str, Met]]:
    """What so many clicks on different options can meet."""
    for names in combinations(met, number):
        for values in product(*(set(met[name].values()) for name in names)):
            yield dict(zip(names, values, strict=True))


def _union(sets: Iterable[Met]) -> Met:
    return Met().union(*sets)


@functools.lru_cache(maxsize=64)  # the episodes of a group have one goal, many of them in one worker
def best_purchases(catalogue: Catalogue, goal_index: int) -> dict[str, Purchase]:
    """asin -> purchase, of all products whose purchase can have the highest score; reads the whole catalogue."""
    goal = catalogue.goal(goal_index)
    wanted = tuple(goal.options.items()) if isinstance(goal.options, dict) else goal.options
    nouns = catalogue.nouns(goal.name)
    best, found = 0.0, dict[str, Purchase]()
    own = catalogue.row(goal.asin)
    for row in sorted(range(len(catalogue)), key=lambda row: row != own):  # its score rules most others out at once
        item = catalogue.product(row)
        plain = score(item, catalogue.price(row), {}, goal, nouns=catalogue.nouns(item.title), goal_nouns=nouns)
        parts = len(goal.attributes) + len(wanted) + 1
        without = plain.attributes + plain.price
        if plain.type * ((without + len(wanted)) / parts) < best:
            continue
        met = _met(item, wanted)
        needed = max(len(_union(changed.values())) for changed in _changes(met, len(met)))
        total = (without + needed) / parts * plain.type
        if total > best:
            best, found = total, {}
        if total == best:
            found[item.asin] = Purchase(met, needed)
    return found


def _met(item: Product, wanted: tuple[str | tuple[str, str], ...]) -> dict[str, dict[str, Met]]:
    """As `Purchase.met`, without the values that meet nothing."""
    owners = {value: name for name, values in item.options.items() for value in values}  # the last that has it
    met: dict[str, dict[str, Met]] = {}
    for value, name in owners.items():
        if value in _BUTTONS or split_action(f"click[{value}]") != ("click", value):
            continue
        meets = Met(i for i, option in enumerate(wanted) if matched_options([value], [option]))
        if meets:
            met.setdefault(name.lower(), {})[value] = meets
    return met


def remaining(session: Session, best: Mapping[str, Purchase]) -> int | None:
    """The fewest actions from the session's page to a purchase of `best_purchases`; None after another purchase."""
    open_item = session.product.asin if session.product else ""
    if session.place == "done":
        return 0 if open_item in best and not best[open_item].clicks(session.options) else None
    return min(
        _steps_to_item(session, asin, open_item) + purchase.clicks(session.options if asin == open_item else {}) + 1
        for asin, purchase in best.items()
    )


def _steps_to_item(session: Session, asin: str, open_item: str | None) -> int:
    if asin == open_item:
        return int(session.place == "sub")  # `< prev` leads back and keeps the options
    return 1 if session.place == "results" and f"click[{asin.lower()}]" in session.clicks else 2
