"""Playing cards: a suit and a rank, such as "D7" or "SK"; ten is T."""

import random

SUITS = {"C": "clubs", "D": "diamonds", "H": "hearts", "S": "spades"}
RANKS = "A23456789TJQK"
_RANK_NAMES = {"A": "ace", "T": "10", "J": "jack", "Q": "queen", "K": "king"}


def draw_card(rng: random.Random, ranks: str = RANKS) -> str:
    """A card of an infinite deck."""
    return rng.choice("CDHS") + rng.choice(ranks)


def count_points(card: str) -> int:
    """Counts a card's points: an ace 1, a face 10."""
    return min(RANKS.index(card[1]) + 1, 10)


def name_card(card: str) -> str:
    """A card's name, such as "king of spades"."""
    return f"{_RANK_NAMES.get(card[1], card[1])} of {SUITS[card[0]]}"
