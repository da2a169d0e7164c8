"""Points24 as an environment: four cards, + - * / and parentheses, target 24."""

import functools
import random

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.cards.arithmetic import can_make
from gigpo_jax.envs.cards.deck import count_points, draw_card
from gigpo_jax.envs.cards.points import PointsGame, choose_best
from gigpo_jax.envs.games import GameEnv, GameExpert, draw_for_split, make_task_ids
from gigpo_jax.envs.points24.prompt import OPERATORS, TARGET

GOAL = f"make {TARGET} from all four cards"


def draw_cards(rng: random.Random) -> tuple[str, ...] | None:
    """Four cards; None if they do not make 24."""
    cards = tuple(draw_card(rng) for _ in range(4))
    numbers = tuple(sorted(map(count_points, cards)))
    # The public game also deals hands that no one can win.
    return cards if can_make(numbers, TARGET, OPERATORS) else None


def make(
    *,
    observation: str = "picture",
    anchor: str = "state",
    max_steps: int = 20,
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
        make_task_ids("points24"),
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
