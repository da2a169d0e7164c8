"""EZPoints as an environment: `registry.make("ezpoints")`. Two cards, + and *, target 12."""

import functools
import random

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.cards.deck import RANKS, draw_card, points
from gigpo_jax.envs.cards.points import PointsGame, best_action
from gigpo_jax.envs.cards.prompt import Rules
from gigpo_jax.envs.games import GameEnv, GameExpert, draw, numbered

TARGET, OPERATORS = 12, "+*"
ACTIONS = (*map(str, range(1, 11)), *OPERATORS, "=")
GOAL = f"make {TARGET} from both cards"
full = Rules(
    f"You play EZPoints. Build a formula that uses the number of each card exactly once and has the value {TARGET}. J, "
    "Q and K count 10. In each turn you add one number or operator to the formula shown; a number that no card is left "
    'for changes nothing. "=" ends the game: reward 10 if the formula is right, otherwise 0.',
    ACTIONS,
)


def draw_cards(rng: random.Random) -> tuple[str, str]:
    """Two cards that make 12: the first from 2 to K, the second what is missing by + or, where that works, by *."""
    first = draw_card(rng, RANKS[1:])
    number = points(first)
    second = TARGET // number if TARGET % number == 0 and rng.random() < 0.5 else TARGET - number
    cards = (first, draw_card(rng, RANKS[second - 1]))
    return cards if rng.random() < 0.5 else cards[::-1]


def make(*, observation: str = "picture", max_steps: int = 8, compat: bool = False, regret: bool = False) -> GameEnv:
    """Builds the environment; `registry.ENVIRONMENTS` explains its options. InputError for one that cannot be used."""

    def start(task: Task) -> PointsGame:
        return PointsGame(draw(task, "", draw_cards, " ".join), TARGET, OPERATORS, compat=compat)

    return GameEnv(numbered("ezpoints"), start, GOAL, observation=observation, max_steps=max_steps, regret=regret)


def make_expert(seed: int, *, random_fraction: float = 0.0) -> GameExpert:
    """Plays the fewest symbols; `registry.ENVIRONMENTS` explains its options."""
    best = functools.partial(best_action, target=TARGET, operators=OPERATORS)
    return GameExpert(best, seed, random_fraction)
