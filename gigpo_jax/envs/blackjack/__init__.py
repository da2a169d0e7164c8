"""Blackjack: stand or hit."""
