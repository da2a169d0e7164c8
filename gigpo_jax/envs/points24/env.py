"""Points24 as an environment: `registry.make("points24")`. Four cards, + - * / and parentheses, target 24."""

import functools
import random

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.cards.arithmetic import makes
from gigpo_jax.envs.cards.deck import draw_card, points
from gigpo_jax.envs.cards.points import PointsGame, best_action
from gigpo_jax.envs.cards.prompt import Rules
from gigpo_jax.envs.games import GameEnv, GameExpert, draw, numbered

TARGET, OPERATORS = 24, "+-*/()"
ACTIONS = (*map(str, range(1, 11)), *OPERATORS, "=")
GOAL = f"make {TARGET} from all four cards"
full = Rules(
    f"You play Points24. Build a formula that uses the number of each card exactly once and has the value {TARGET}. An "
    "ace counts 1; J, Q and K count 10. In each turn you add one number, operator or parenthesis to the formula shown; "
    'a number that no card is left for changes nothing. "=" ends the game: reward 10 if the formula is right, else 0.',
    ACTIONS,
)


def draw_cards(rng: random.Random) -> tuple[str, ...] | None:
    """Four cards; None if they do not make 24."""
    cards = tuple(draw_card(rng) for _ in range(4))
    return cards if makes(tuple(sorted(map(points, cards))), TARGET, OPERATORS) else None


def make(*, observation: str = "picture", max_steps: int = 20, compat: bool = False, regret: bool = False) -> GameEnv:
    """Builds the environment; `registry.ENVIRONMENTS` explains its options. InputError for one that cannot be used."""

    def start(task: Task) -> PointsGame:
        return PointsGame(draw(task, "", draw_cards, " ".join), TARGET, OPERATORS, compat=compat)

    return GameEnv(numbered("points24"), start, GOAL, observation=observation, max_steps=max_steps, regret=regret)


def make_expert(seed: int, *, random_fraction: float = 0.0) -> GameExpert:
    """Plays the fewest symbols; `registry.ENVIRONMENTS` explains its options."""
    best = functools.partial(best_action, target=TARGET, operators=OPERATORS)
    return GameExpert(best, seed, random_fraction)
