"""Blackjack as an environment: `registry.make("blackjack")`. An infinite deck; only a win gives a reward, 1."""

import functools
import random
from collections.abc import Sequence

import numpy as np

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.cards.deck import draw_card, in_words, points
from gigpo_jax.envs.cards.picture import blackjack_picture
from gigpo_jax.envs.cards.prompt import Rules
from gigpo_jax.envs.games import GameEnv, GameExpert, draw, numbered

ACTIONS = ("stand", "hit")
GOAL = "beat the dealer"
_DEALT = 48  # cards of an episode, more than it can use
_DRAWS = (*((number, 1 / 13) for number in range(1, 10)), (10, 4 / 13))
full = Rules(
    "You play Blackjack. The sum of your cards must be above the dealer's and not above 21. Numbers count their value, "
    'J, Q and K 10, an ace 1 or 11. "hit" gives you one more card; above 21 you lose. "stand" ends your turn; then the '
    "dealer turns the hidden card and draws until the sum is 17 or more. Reward 1 for a win, 0 for a draw or a loss.",
    ACTIONS,
)


def total(values: Sequence[int]) -> int:
    """The best sum of a hand: an ace counts 11 where that is not above 21."""
    hard = sum(values)
    return hard + 10 if 1 in values and hard <= 11 else hard


class BlackjackGame:
    """One episode; a `games.Game`.

    Attributes:
      dealer: the dealer's cards, the first one is open.
      player: the player's cards.
    """

    def __init__(self, cards: Sequence[str]) -> None:
        """Starts with all cards in order: two for the dealer, two for the player, then those to be drawn."""
        self._cards, self._drawn = tuple(cards), 4
        self.dealer, self.player = list(cards[:2]), list(cards[2:4])
        self.won = False

    @property
    def content(self) -> str:
        return " ".join(self._cards)

    def act(self, action: str) -> tuple[float, bool]:
        if action == "hit":
            self._draw(self.player)
            return 0.0, _sum(self.player) > 21
        if action == "stand":
            while _sum(self.dealer) < 17:
                self._draw(self.dealer)
            self.won = _sum(self.dealer) > 21 or _sum(self.player) > _sum(self.dealer)
            return float(self.won), True
        return 0.0, False

    def _draw(self, hand: list[str]) -> None:
        hand.append(self._cards[self._drawn])
        self._drawn += 1

    def state(self) -> str:
        return " ".join((self.dealer[0], "|", *self.player))

    def text(self, *, picture: bool) -> str:
        dealer, player = in_words(self.dealer[0]), ", ".join(map(in_words, self.player))
        return "" if picture else f"Dealer: {dealer} and a hidden card\nYou: {player}"

    def picture(self) -> np.ndarray:
        return blackjack_picture(self.dealer[0], self.player)

    def actions(self) -> tuple[str, ...]:
        return ACTIONS

    def remaining(self) -> int | None:
        """As `games.Game`: the hidden card and the order of the deck are known here."""
        if self.won:
            return 0
        for hits in range(len(self._cards) - self._drawn):
            game = BlackjackGame((*self.dealer[:2], *self._cards[2:]))
            if any(game.act("hit")[1] for _ in range(len(self.player) - 2 + hits)):
                return None
            if game.act("stand")[0]:
                return hits + 1
        return None


def _sum(cards: Sequence[str]) -> int:
    return total([points(card) for card in cards])


def draw_cards(rng: random.Random) -> list[str]:
    """The cards of an episode; a card that counts 10 is J, Q or K."""
    cards = [draw_card(rng) for _ in range(_DEALT)]
    return [card[0] + rng.choice("JQK") if card[1] in "TJQK" else card for card in cards]


def make(*, observation: str = "picture", max_steps: int = 15, regret: bool = False) -> GameEnv:
    """Builds the environment; `registry.ENVIRONMENTS` explains its options. InputError for one that cannot be used."""

    def start(task: Task) -> BlackjackGame:
        return BlackjackGame(draw(task, "", draw_cards, " ".join))

    return GameEnv(numbered("blackjack"), start, GOAL, observation=observation, max_steps=max_steps, regret=regret)


def best_action(state: str) -> str:
    """The action with the larger probability of a win."""
    dealer, player = state.split(" | ")
    hand, shown = tuple(sorted(points(card) for card in player.split())), points(dealer)
    return "hit" if _hit(hand, shown) > _stand(total(hand), shown) else "stand"


@functools.cache
def _dealer(hand: tuple[int, ...]) -> dict[int, float]:
    """The probability of each final sum of the dealer, 22 for all above 21."""
    if total(hand) >= 17:
        return {min(total(hand), 22): 1.0}
    found: dict[int, float] = {}
    for number, probability in _DRAWS:
        for end, share in _dealer(tuple(sorted((*hand, number)))).items():
            found[end] = found.get(end, 0.0) + probability * share
    return found


@functools.cache
def _stand(player: int, shown: int) -> float:
    """The probability of a win after "stand"."""
    return sum(share for end, share in _dealer((shown,)).items() if end == 22 or end < player)


@functools.cache
def _hit(hand: tuple[int, ...], shown: int) -> float:
    """The probability of a win after "hit" and the best actions that follow."""
    return sum(
        probability * max(_stand(total(after), shown), _hit(after, shown))
        for number, probability in _DRAWS
        if total(after := tuple(sorted((*hand, number)))) <= 21
    )


def make_expert(seed: int, *, random_fraction: float = 0.0) -> GameExpert:
    """Plays what wins most often; `registry.ENVIRONMENTS` explains its options."""
    return GameExpert(best_action, seed, random_fraction)
