"""Points games: a formula of all cards that reaches a target, one symbol a turn. Rules as in gym-cards."""

from collections.abc import Sequence

import numpy as np

from gigpo_jax.envs.cards.arithmetic import completion, python_value, value
from gigpo_jax.envs.cards.deck import in_words, points
from gigpo_jax.envs.cards.picture import points_picture

REWARD = 10.0


class PointsGame:
    """One episode; a `games.Game`.

    Attributes:
      formula: the symbols so far.
      won: whether the formula has every card and the target's value.
    """

    def __init__(self, cards: Sequence[str], target: int, operators: str, *, compat: bool = False) -> None:
        """Starts with cards such as "D7"; `compat` takes the value of a formula from Python's arithmetic."""
        self._cards, self._target, self._operators = tuple(cards), target, operators
        self._value = python_value if compat else value
        self._left = sorted(map(points, cards))
        self.formula: list[str] = []
        self.won = False

    @property
    def content(self) -> str:
        return " ".join(self._cards)

    def act(self, action: str) -> tuple[float, bool]:
        """Adds a number that a card is left for, or an operator; "=" ends the game. Anything else does nothing."""
        if action == "=":
            self.won = not self._left and self._value(self.formula) == self._target
            return REWARD * self.won, True
        if action in self.actions():
            if action.isdigit():
                self._left.remove(int(action))
            self.formula.append(action)
        return 0.0, False

    def state(self) -> str:
        return " ".join((*self._cards, "|", *self.formula))

    def text(self, *, picture: bool) -> str:
        formula = "Formula: " + " ".join(self.formula)
        return f"\n{formula}" if picture else f"Cards: {', '.join(map(in_words, self._cards))}\n{formula}"

    def picture(self) -> np.ndarray:
        return points_picture(self._cards, "".join(self.formula))

    def actions(self) -> tuple[str, ...]:
        return (*map(str, sorted(set(self._left))), *self._operators, "=")

    def remaining(self) -> int | None:
        """As `games.Game`; the solver knows ordinary arithmetic alone."""
        rest = completion(self.formula, tuple(self._left), self._target, self._operators)
        return None if rest is None else 0 if self.won else len(rest) + 1


def best_action(state: str, target: int, operators: str) -> str:
    """The next symbol of a shortest completion; "=" if there is none, or nothing is missing."""
    cards, _, shown = state.partition(" |")
    formula, left = shown.split(), sorted(map(points, cards.split()))
    for symbol in formula:
        if symbol.isdigit():
            left.remove(int(symbol))
    rest = completion(formula, tuple(left), target, operators)
    return rest[0] if rest else "="
