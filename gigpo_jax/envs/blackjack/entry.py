"""The entry of Blackjack."""

from gigpo_jax.envs.blackjack.prompt import RULES
from gigpo_jax.envs.cards.card_entry import card_entry

ENVIRONMENT = card_entry("blackjack", RULES, max_steps=15)
