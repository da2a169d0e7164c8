"""What the card games share: the deck, its pictures, points games, and responses in JSON."""
