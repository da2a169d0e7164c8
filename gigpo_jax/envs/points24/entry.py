"""The entry of Points24."""

from gigpo_jax.envs.cards.card_entry import COMPAT_OPTION, card_entry
from gigpo_jax.envs.points24.prompt import RULES

ENVIRONMENT = card_entry("points24", RULES, max_steps=20, compat=COMPAT_OPTION)
