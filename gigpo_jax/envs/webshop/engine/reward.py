"""The reward of a purchase, in [0, 1], computed as in the original."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gigpo_jax.envs.webshop.catalogue.goals import Goal
from gigpo_jax.envs.webshop.catalogue.sources import Product
from gigpo_jax.envs.webshop.engine.text_similarity import token_set_ratio

_ALIKE = 85


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COLOURS = _words(
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo "
    "caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream "
    "crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather "
    "indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha "
    "multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal "
    "rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise "
    "violet walnut wheat white wine yellow"
)


@dataclass(frozen=True, slots=True)
class Score:
    """The reward of a purchase and its parts."""

    total: float  # type x (attributes + options + price) / (number of each + 1)
    type: float  # 0, 0.1, 0.5 or 1: whether it is the right kind of product
    attributes: int  # how many of the goal's are met
    options: int  # likewise
    price: bool  # whether the price is within the cap
    query_match: bool  # this, category_match and title_score determine `type`
    category_match: bool
    title_score: float


def normalise_colour(option: str | tuple[str, str]) -> str | tuple[str, str]:
    """The first colour word in an option (a substring of a text, an element of a tuple), else the option."""
    return next((colour for colour in COLOURS if colour in option), option)


def matched_options(bought: Sequence[str], wanted: Sequence[str | tuple[str, str]]) -> int:
    """How many wanted options resemble a bought one; tuples are compared by `str`."""
    have = [normalise_colour(option) for option in bought]
    want = [normalise_colour(option) for option in wanted]
    return sum(any(token_set_ratio(str(h), str(w)) > _ALIKE for h in have) for w in want)


def matched_attributes(product: Product, wanted: Sequence[str]) -> int:
    """How many wanted attributes the product has, as an attribute or in its title, bullets or description."""
    title, bullets = product.title.lower(), " ".join(product.bullets).lower()
    description = product.description.lower()
    return sum(
        any(token_set_ratio(have, want) > _ALIKE for have in product.attributes)
        or want in title
        or want in bullets
        or want in description
        for want in wanted
    )


def _parts(product_category: str) -> set[str]:
    return {part.strip() for part in product_category.split("›")}


def score(
    product: Product,
    price: float,
    options: Mapping[str, str],
    goal: Goal,
    *,
    nouns: Sequence[str],
    goal_nouns: Sequence[str],
) -> Score:
    """Scores a purchase.

    Args:
      price: of the product, in dollars.
      options: option name -> chosen value.
      nouns: the nouns of the product's title, in order, lower case.
      goal_nouns: those of the goal's product.
    """
    title_score = len(set(nouns) & set(goal_nouns)) / len(goal_nouns) if goal_nouns else 0.2
    query_match = product.query == goal.query
    category_match = len(_parts(product.product_category) & _parts(goal.product_category)) >= 2
    kind = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score < 0.1:
        kind = 0.1
    if title_score == 0.0:
        kind = 0.0
    wanted = tuple(goal.options.items()) if isinstance(goal.options, dict) else goal.options
    attributes = matched_attributes(product, goal.attributes)
    chosen = matched_options(tuple(options.values()), wanted)
    within = price <= goal.price_cap
    total = (attributes + chosen + within) / (len(goal.attributes) + len(wanted) + 1)
    return Score(total * kind, kind, attributes, chosen, within, query_match, category_match, title_score)
