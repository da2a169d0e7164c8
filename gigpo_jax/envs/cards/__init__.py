"""What the card games share: the deck, its pictures, points games, and replies in JSON."""
