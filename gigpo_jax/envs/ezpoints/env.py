"""EZPoints as an environment: two cards, + and *, target 12."""

import random

from gigpo_jax.envs.cards.deck import RANKS, count_points, draw_card
from gigpo_jax.envs.cards.points import env_builder, expert_builder
from gigpo_jax.envs.ezpoints.prompt import OPERATORS, TARGET

GOAL = f"make {TARGET} from both cards"


def draw_cards(rng: random.Random) -> tuple[str, str]:
    """Two cards that make 12: one from 2 to K, and its partner by + or, where that works, by *."""
    # No ace: its partner by addition would have 11 points, which no card has.
    card = draw_card(rng, RANKS[1:])
    number = count_points(card)
    partner_number = TARGET - number
    if TARGET % number == 0 and rng.random() < 0.5:
        partner_number = TARGET // number
    partner = draw_card(rng, RANKS[partner_number - 1])
    if rng.random() < 0.5:
        return card, partner
    return partner, card


# entry.py explains the options.
make = env_builder(
    "ezpoints",
    GOAL,
    draw_cards,
    target=TARGET,
    operators=OPERATORS,
    published_steps=8,
)
make_expert = expert_builder(TARGET, OPERATORS)
