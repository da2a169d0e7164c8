"""Points24 as an environment: four cards, + - * / and parentheses, target 24."""

import random

from gigpo_jax.envs.cards.arithmetic import can_make
from gigpo_jax.envs.cards.deck import count_points, draw_card
from gigpo_jax.envs.cards.points import env_builder, expert_builder
from gigpo_jax.envs.points24.prompt import OPERATORS, TARGET

GOAL = f"make {TARGET} from all four cards"


def draw_cards(rng: random.Random) -> tuple[str, ...] | None:
    """Four cards; None if they do not make 24."""
    cards = tuple(draw_card(rng) for _ in range(4))
    numbers = tuple(sorted(map(count_points, cards)))
    # The public game also deals hands that no one can win.
    return cards if can_make(numbers, TARGET, OPERATORS) else None


# entry.py explains the options.
make = env_builder(
    "points24",
    GOAL,
    draw_cards,
    target=TARGET,
    operators=OPERATORS,
    published_steps=20,
)
make_expert = expert_builder(TARGET, OPERATORS)
