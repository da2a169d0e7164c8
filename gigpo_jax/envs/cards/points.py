"""Points games: a formula of all cards reaches a target, one symbol a turn, as in gym-cards."""

import functools
import random
from collections.abc import Callable, Sequence

import numpy as np

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.cards.arithmetic import evaluate, evaluate_python, find_completion
from gigpo_jax.envs.cards.deck import count_points, name_card
from gigpo_jax.envs.cards.picture import draw_points_game
from gigpo_jax.envs.games import GameEnv, GameExpert, draw_for_split, make_task_ids

REWARD = 10.0


class PointsGame:
    """One episode; a `games.SmallGame`.

    Attributes:
      formula: Symbols so far.
      won: Whether the formula has every card and the target's value.
    """

    def __init__(
        self, cards: Sequence[str], target: int, operators: str, *, compat: bool = False
    ) -> None:
        """Starts a game.

        Args:
          cards: Cards, such as "D7".
          target: Value to reach.
          operators: Symbols beside the numbers.
          compat: Whether a formula has the value of Python's arithmetic.
        """
        self._cards = tuple(cards)
        self._target = target
        self._operators = operators
        self._evaluate = evaluate_python if compat else evaluate
        # A list with repeats: of two equal cards each can be used once.
        self._unused_numbers = sorted(map(count_points, cards))
        self.formula: list[str] = []
        self.won = False

    @property
    def content(self) -> str:
        return " ".join(self._cards)

    def act(self, action: str) -> tuple[float, bool]:
        """Adds an unused number or an operator; "=" ends the game, and other texts do nothing."""
        if action == "=":
            # All cards must be used: the target from fewer is no win.
            self.won = not self._unused_numbers and self._evaluate(self.formula) == self._target
            return REWARD * self.won, True
        # As in the published games, a number that is not there leaves the formula as it is.
        if action in self.actions():
            if action.isdigit():
                self._unused_numbers.remove(int(action))
            self.formula.append(action)
        return 0.0, False

    def state(self) -> str:
        return " ".join((*self._cards, "|", *self.formula))

    def text(self, *, picture: bool) -> str:
        formula = "Formula: " + " ".join(self.formula)
        if picture:
            return f"\n{formula}"
        return f"Cards: {', '.join(map(name_card, self._cards))}\n{formula}"

    def picture(self) -> np.ndarray:
        return draw_points_game(self._cards, "".join(self.formula))

    def actions(self) -> tuple[str, ...]:
        return (*map(str, sorted(set(self._unused_numbers))), *self._operators, "=")

    def remaining(self) -> int | None:
        """As `games.SmallGame`; the solver knows ordinary arithmetic alone."""
        completion = find_completion(
            self.formula, tuple(self._unused_numbers), self._target, self._operators
        )
        # A formula that cannot be completed any more has lost, even if turns are left.
        if completion is None:
            return None
        return 0 if self.won else len(completion) + 1


def choose_best(state: str, target: int, operators: str) -> str:
    """Chooses the next symbol of a shortest completion; "=" if there is none, or it is complete."""
    cards, _, formula_text = state.partition(" |")
    formula = formula_text.split()
    unused_numbers = sorted(map(count_points, cards.split()))
    for symbol in formula:
        # The anchor has cards and formula; what is unused follows from both.
        if symbol.isdigit():
            unused_numbers.remove(int(symbol))
    completion = find_completion(formula, tuple(unused_numbers), target, operators)
    return completion[0] if completion else "="


def env_builder(
    name: str,
    goal: str,
    draw_cards: Callable[[random.Random], Sequence[str] | None],
    *,
    target: int,
    operators: str,
    published_steps: int,
) -> Callable[..., GameEnv]:
    """Returns the function that builds a points game's environment.

    Args:
      name: Name of the game.
      goal: Goal in words.
      draw_cards: Function that draws cards; None for cards that cannot be won.
      target: Value to reach.
      operators: Symbols beside the numbers.
      published_steps: Default length of an episode.
    """

    # The options stand one by one: `build_object` reads their names.
    def make(
        *,
        observation: str = "picture",
        max_steps: int = published_steps,
        compat: bool = False,
        regret: bool = False,
    ) -> GameEnv:
        def start_game(task: Task) -> PointsGame:
            cards = draw_for_split(task, "", draw_cards, " ".join)
            return PointsGame(cards, target, operators, compat=compat)

        return GameEnv(
            make_task_ids(name),
            start_game,
            goal,
            observation=observation,
            max_steps=max_steps,
            regret=regret,
        )

    return make


def expert_builder(target: int, operators: str) -> Callable[..., GameExpert]:
    """Returns the maker of demonstrators; they play the fewest symbols."""

    def make_expert(seed: int, *, random_fraction: float = 0.0) -> GameExpert:
        choose_action = functools.partial(choose_best, target=target, operators=operators)
        return GameExpert(choose_action, seed, random_fraction)

    return make_expert
