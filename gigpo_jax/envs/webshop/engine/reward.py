"""The reward of a purchase, in [0, 1], computed as in the original."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gigpo_jax.envs.webshop.catalogue.goals import ShoppingGoal
from gigpo_jax.envs.webshop.catalogue.sources import Product
from gigpo_jax.envs.webshop.engine.nouns import list_words
from gigpo_jax.envs.webshop.engine.text_similarity import token_set_ratio

_ALIKE = 85  # percent; a similarity above it is a match


COLOURS = list_words(
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown "
    "burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee "
    "cognac copper coral cranberry cream crystal dark denim eggplant elephant espresso fuchsia "
    "gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki lavender "
    "lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor "
    "mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red "
    "rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower "
    "tan taupe teal tiger turquoise violet walnut wheat white wine yellow"
)


@dataclass(frozen=True, slots=True)
class Score:
    """The reward of a purchase and its parts."""

    total: float  # type x (attributes + options + price) / (number of each + 1)
    type: float  # 0, 0.1, 0.5 or 1: whether it is the right kind of product
    attributes: int  # number of the goal's attributes that the product has
    options: int  # number of the goal's options that were chosen
    price: bool  # whether the price is within the cap
    query_match: bool  # this, category_match and title_score determine `type`
    category_match: bool
    title_score: float


def normalise_colour(option: str | tuple[str, str]) -> str | tuple[str, str]:
    """Returns an option's first colour word, or the option itself.

    A colour is looked for as a substring of a text, but as an element of a tuple: the original
    compares (name, value) pairs of synthetic goals in that way.
    """
    return next((colour for colour in COLOURS if colour in option), option)


def count_matching_options(chosen: Sequence[str], required: Sequence[str | tuple[str, str]]) -> int:
    """Counts the required options that resemble a chosen one; tuples are compared by `str`."""
    chosen_texts = [str(normalise_colour(option)) for option in chosen]
    count = 0
    for option in required:
        text = str(normalise_colour(option))
        count += any(token_set_ratio(chosen_text, text) > _ALIKE for chosen_text in chosen_texts)
    return count


def count_matching_attributes(product: Product, required: Sequence[str]) -> int:
    """How many required attributes a product has, in its attributes or literally in its texts.

    The texts are title, bullets and description.
    """
    texts = (product.title.lower(), " ".join(product.bullets).lower(), product.description.lower())
    count = 0
    for attribute in required:
        similar = any(
            token_set_ratio(candidate, attribute) > _ALIKE for candidate in product.attributes
        )
        # True adds 1: an attribute counts once, however often it occurs.
        count += similar or any(attribute in text for text in texts)
    return count


def _category_levels(product_category: str) -> set[str]:
    return {level.strip() for level in product_category.split("›")}


def score_purchase(
    product: Product,
    price: float,
    options: Mapping[str, str],
    goal: ShoppingGoal,
    *,
    nouns: Sequence[str],
    goal_nouns: Sequence[str],
) -> Score:
    """Scores a purchase.

    Args:
      product: Product that was bought.
      price: Price of the product, in dollars.
      options: Option name -> chosen value.
      goal: Goal of the episode.
      nouns: Nouns of the product's title, in order, lower case.
      goal_nouns: Nouns of the title of the goal's product.
    """
    # The original's value for a goal without nouns: not above 0.2, so it is no match by itself, and
    # not below 0.1.
    title_score = 0.2
    if goal_nouns:
        title_score = len(set(nouns) & set(goal_nouns)) / len(goal_nouns)
    query_match = product.query == goal.query
    # As sets: the levels may stand at different places of the two paths.
    shared_levels = _category_levels(product.product_category) & _category_levels(
        goal.product_category
    )
    category_match = len(shared_levels) >= 2
    # The order is the original's: a low title score overrules an equal query.
    kind = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score < 0.1:
        kind = 0.1
    if title_score == 0.0:
        kind = 0.0

    required = required_options(goal)
    attribute_count = count_matching_attributes(product, goal.attributes)
    option_count = count_matching_options(tuple(options.values()), required)
    within_cap = price <= goal.price_cap
    # One more for the price.
    terms = len(goal.attributes) + len(required) + 1
    total = (attribute_count + option_count + within_cap) / terms
    return Score(
        total=total * kind,
        type=kind,
        attributes=attribute_count,
        options=option_count,
        price=within_cap,
        query_match=query_match,
        category_match=category_match,
        title_score=title_score,
    )


def required_options(goal: ShoppingGoal) -> tuple[str | tuple[str, str], ...]:
    """Returns a goal's options: values of human goals, (name, value) pairs of synthetic ones."""
    if isinstance(goal.options, dict):
        return tuple(goal.options.items())
    return goal.options
