"""Blackjack as an environment. An infinite deck; only a win gives a reward, 1."""

import functools
import random
from collections.abc import Sequence

import numpy as np

from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs.blackjack.prompt import ACTIONS
from gigpo_jax.envs.cards.deck import count_points, draw_card, name_card
from gigpo_jax.envs.cards.picture import draw_blackjack_game
from gigpo_jax.envs.games import GameEnv, GameExpert, draw_for_split, make_task_ids

GOAL = "beat the dealer"
_MAX_CARDS = 48  # of an episode, more than it can use
# Points of a card and their probability.
_DRAWS = (*((points, 1 / 13) for points in range(1, 10)), (10, 4 / 13))
Hand = tuple[int, ...]  # points of the cards, in ascending order


def sum_points(points: Sequence[int]) -> int:
    """Returns the best sum of a hand, where an ace counts 11 if the sum is not above 21."""
    hard_sum = sum(points)
    if 1 in points and hard_sum <= 11:
        return hard_sum + 10
    return hard_sum


class BlackjackGame:
    """One episode; a `games.SmallGame`.

    Attributes:
      dealer: Cards of the dealer, the first one is open.
      player: Cards of the player.
      won: Whether the player won.
    """

    def __init__(self, cards: Sequence[str]) -> None:
        """Starts a game.

        Args:
          cards: All cards in order: two of the dealer, two of the player, then those to be drawn.
        """
        self._cards = tuple(cards)
        self._next_card = 4
        self.dealer = list(cards[:2])
        self.player = list(cards[2:4])
        self.won = False

    @property
    def content(self) -> str:
        return " ".join(self._cards)

    def act(self, action: str) -> tuple[float, bool]:
        if action == "hit":
            self._draw_card(self.player)
            return 0.0, _sum_cards(self.player) > 21
        if action == "stand":
            while _sum_cards(self.dealer) < 17:
                self._draw_card(self.dealer)
            dealer_sum = _sum_cards(self.dealer)
            self.won = dealer_sum > 21 or _sum_cards(self.player) > dealer_sum
            return float(self.won), True
        return 0.0, False

    def _draw_card(self, hand: list[str]) -> None:
        hand.append(self._cards[self._next_card])
        self._next_card += 1

    def state(self) -> str:
        return " ".join((self.dealer[0], "|", *self.player))

    def text(self, *, picture: bool) -> str:
        if picture:
            return ""
        dealer = name_card(self.dealer[0])
        player = ", ".join(map(name_card, self.player))
        return f"Dealer: {dealer} and a hidden card\nYou: {player}"

    def picture(self) -> np.ndarray:
        return draw_blackjack_game(self.dealer[0], self.player)

    def actions(self) -> tuple[str, ...]:
        return ACTIONS

    def remaining(self) -> int | None:
        """As `games.SmallGame`, with hidden card and deck known."""
        if self.won:
            return 0
        previous_hits = len(self.player) - 2
        # Played again from the deal: the dealer draws from the same deck after the player, so every
        # hit changes the dealer's cards.
        for hits in range(len(self._cards) - self._next_card):
            game = BlackjackGame((*self.dealer[:2], *self._cards[2:]))
            for _ in range(previous_hits + hits):
                _, is_over = game.act("hit")
                if is_over:
                    return None
            reward, _ = game.act("stand")
            if reward:
                return hits + 1
        return None


def _sum_cards(cards: Sequence[str]) -> int:
    return sum_points([count_points(card) for card in cards])


def draw_cards(rng: random.Random) -> list[str]:
    """Draws an episode's cards; tens become J, Q, K."""
    cards = [draw_card(rng) for _ in range(_MAX_CARDS)]
    # The public pictures show no tens, and so neither do these.
    return [card[0] + rng.choice("JQK") if card[1] in "TJQK" else card for card in cards]


def make(
    *,
    observation: str = "picture",
    max_steps: int = 15,
    regret: bool = False,
) -> GameEnv:
    """Builds the environment; entry.py explains the options.

    Raises InputError for an unusable option.
    """

    def start_game(task: Task) -> BlackjackGame:
        return BlackjackGame(draw_for_split(task, "", draw_cards, " ".join))

    return GameEnv(
        make_task_ids("blackjack"),
        start_game,
        GOAL,
        observation=observation,
        max_steps=max_steps,
        regret=regret,
    )


def choose_best(state: str) -> str:
    """The action with the larger probability of a win."""
    dealer_card, player_cards = state.split(" | ")
    hand = tuple(sorted(count_points(card) for card in player_cards.split()))
    dealer_points = count_points(dealer_card)
    hit_probability = _win_after_hit(hand, dealer_points)
    stand_probability = _win_after_stand(sum_points(hand), dealer_points)
    return "hit" if hit_probability > stand_probability else "stand"


@functools.cache
def _find_dealer_sums(hand: Hand) -> dict[int, float]:
    """Returns the probabilities of the dealer's final sums; 22 stands for all sums above 21."""
    if sum_points(hand) >= 17:
        # The dealer stands on every 17, soft or hard, as `act` does.
        return {min(sum_points(hand), 22): 1.0}
    probabilities: dict[int, float] = {}
    for points, probability in _DRAWS:
        next_hand = tuple(sorted((*hand, points)))
        for final_sum, share in _find_dealer_sums(next_hand).items():
            previous = probabilities.get(final_sum, 0.0)
            probabilities[final_sum] = previous + probability * share
    return probabilities


@functools.cache
def _win_after_stand(player_sum: int, dealer_points: int) -> float:
    """The probability of a win after "stand"."""
    probability = 0.0
    # The hidden card counts as the next draw: in an infinite deck the two are the same.
    for final_sum, share in _find_dealer_sums((dealer_points,)).items():
        if final_sum == 22 or final_sum < player_sum:
            probability += share
    return probability


@functools.cache
def _win_after_hit(hand: Hand, dealer_points: int) -> float:
    """Returns the win probability of "hit" and best play."""
    win_probability = 0.0
    for points, probability in _DRAWS:
        next_hand = tuple(sorted((*hand, points)))
        next_sum = sum_points(next_hand)
        # A hand above 21 has lost and adds nothing.
        if next_sum <= 21:
            # After a hit the choice is free again.
            stand = _win_after_stand(next_sum, dealer_points)
            win_probability += probability * max(stand, _win_after_hit(next_hand, dealer_points))
    return win_probability


def make_expert(seed: int, *, random_fraction: float = 0.0) -> GameExpert:
    """A demonstrator that plays the action that wins most often."""
    return GameExpert(choose_best, seed, random_fraction)
