"""EZPoints as an environment: two cards, + and *, target 12."""

import functools
import random

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.cards.deck import RANKS, count_points, draw_card
from gigpo_jax.envs.cards.points import PointsGame, choose_best
from gigpo_jax.envs.ezpoints.prompt import OPERATORS, TARGET
from gigpo_jax.envs.games import GameEnv, GameExpert, draw_for_split, make_task_ids

GOAL = f"make {TARGET} from both cards"


def draw_cards(rng: random.Random) -> tuple[str, str]:
    """Two cards that make 12.

    The first is one from 2 to K; the second makes 12 of it by + or, where that works, by *.
    """
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


def make(
    *,
    observation: str = "picture",
    anchor: str = "state",
    max_steps: int = 8,
    compat: bool = False,
    regret: bool = False,
) -> GameEnv:
    """Builds the environment; entry.py explains the options.

    Raises InputError for an unusable option.
    """

    def start_game(task: Task) -> PointsGame:
        cards = draw_for_split(task, "", draw_cards, " ".join)
        return PointsGame(cards, TARGET, OPERATORS, compat=compat)

    return GameEnv(
        make_task_ids("ezpoints"),
        start_game,
        GOAL,
        observation=observation,
        anchor=anchor,
        max_steps=max_steps,
        regret=regret,
    )


def make_expert(seed: int, *, random_fraction: float = 0.0) -> GameExpert:
    """A demonstrator that plays the fewest symbols."""
    choose_action = functools.partial(choose_best, target=TARGET, operators=OPERATORS)
    return GameExpert(choose_action, seed, random_fraction)
