"""The fewest actions from any page to the best purchase, from full knowledge of the catalogue.

The best purchase has the highest score of all products and options. A search is one action and can
be made on every page. Some query finds the product among the first ten: the tests show that its
title does, in the generated catalogue.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product

from gigpo_jax.envs.webshop.catalogue.catalogue import Catalogue
from gigpo_jax.envs.webshop.catalogue.sources import Product
from gigpo_jax.envs.webshop.engine import pages
from gigpo_jax.envs.webshop.engine.reward import (
    count_matching_options,
    required_options,
    score_purchase,
)
from gigpo_jax.envs.webshop.engine.session import Session, split_brackets

_BUTTONS = {
    button.lower()
    for button in (pages.SEARCH, pages.BACK, pages.PREVIOUS, pages.BUY, *pages.SUB_PAGES)
}

Matches = frozenset[int]  # indices of the goal's options that a value matches


@dataclass(frozen=True)
class Purchase:
    """A product that the right options make the best purchase."""

    matches: Mapping[str, Mapping[str, Matches]]  # option name -> clickable value -> its matches
    required: int  # number of the goal's options that must be matched

    def count_clicks(self, chosen: Mapping[str, str]) -> int:
        """Returns the fewest clicks from chosen options (name -> value) to enough matches."""
        current = {}
        for name, value in chosen.items():
            current[name] = self.matches.get(name, {}).get(value, Matches())
        # From none upwards: the first number that suffices is the fewest.
        for clicks in range(len(self.matches) + 1):
            for changes in _list_changes(self.matches, clicks):
                if len(_unite_matches((current | changes).values())) >= self.required:
                    return clicks
        raise AssertionError("all options together match what is required")


def _list_changes(
    matches: Mapping[str, Mapping[str, Matches]], clicks: int
) -> Iterator[dict[str, Matches]]:
    """Yields option name -> matches for each choice of this many clicks on different options."""
    for names in combinations(matches, clicks):
        for values in product(*(set(matches[name].values()) for name in names)):
            yield dict(zip(names, values, strict=True))


def _unite_matches(sets: Iterable[Matches]) -> Matches:
    return Matches().union(*sets)


# The episodes of a group have one goal, and many of them run in one worker.
@functools.lru_cache(maxsize=64)
def best_purchases(catalogue: Catalogue, goal_index: int) -> dict[str, Purchase]:
    """Finds all products whose purchase can score highest.

    Returns asin -> purchase. Reads the whole catalogue.
    """
    goal = catalogue.goal(goal_index)
    required = required_options(goal)
    goal_nouns = catalogue.nouns(goal.name)
    terms = len(goal.attributes) + len(required) + 1
    best_total = 0.0
    purchases: dict[str, Purchase] = {}
    # The goal's product first: its score rules most others out before their options are tried.
    goal_row = catalogue.row(goal.asin)
    for row in sorted(range(len(catalogue)), key=lambda row: row != goal_row):
        item = catalogue.product(row)
        score = score_purchase(
            item,
            catalogue.price(row),
            {},
            goal,
            nouns=catalogue.nouns(item.title),
            goal_nouns=goal_nouns,
        )
        base = score.attributes + score.price
        # Even with all options it would score less than the best so far.
        if score.type * ((base + len(required)) / terms) < best_total:
            continue
        matches = _match_values(item, required)
        match_count = max(
            len(_unite_matches(changes.values()))
            for changes in _list_changes(matches, len(matches))
        )
        # The operations have the order of `score_purchase`: totals are compared exactly.
        total = (base + match_count) / terms * score.type
        if total > best_total:
            best_total = total
            purchases = {}
        if total == best_total:
            purchases[item.asin] = Purchase(matches, match_count)
    return purchases


def _match_values(
    item: Product, required: tuple[str | tuple[str, str], ...]
) -> dict[str, dict[str, Matches]]:
    """Returns a product's `Purchase.matches`, without values that match nothing."""
    owners: dict[str, str] = {}  # of a value of several options, the last one is clicked
    for name, values in item.options.items():
        owners.update(dict.fromkeys(values, name))
    matches: dict[str, dict[str, Matches]] = {}
    for value, name in owners.items():
        if value in _BUTTONS or split_brackets(f"click[{value}]") != ("click", value):
            continue
        value_matches = Matches(
            index
            for index, option in enumerate(required)
            if count_matching_options([value], [option])
        )
        if value_matches:
            matches.setdefault(name.lower(), {})[value] = value_matches
    return matches


def count_remaining_actions(session: Session, purchases: Mapping[str, Purchase]) -> int | None:
    """Returns the fewest actions to one of `best_purchases`; None after another purchase."""
    open_asin = session.product.asin if session.product else ""
    if session.place == "done":
        bought = purchases.get(open_asin)
        is_best = bought is not None and bought.count_clicks(session.options) == 0
        return 0 if is_best else None
    lengths = []
    for asin, purchase in purchases.items():
        options = session.options if asin == open_asin else {}
        steps = _count_steps_to_item(session, asin, open_asin)
        lengths.append(steps + purchase.count_clicks(options) + 1)
    return min(lengths)


def _count_steps_to_item(session: Session, asin: str, open_asin: str) -> int:
    if asin == open_asin:
        return int(session.place == "sub")  # `< prev` leads back and keeps the options
    is_listed = session.place == "results" and f"click[{asin.lower()}]" in session.clicks
    return 1 if is_listed else 2
