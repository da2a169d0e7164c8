"""The entry of NumberLine."""

from gigpo_jax.envs.cards.card_entry import card_entry
from gigpo_jax.envs.numberline.prompt import RULES

ENVIRONMENT = card_entry("numberline", RULES, max_steps=10)
