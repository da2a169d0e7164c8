"""The entry of EZPoints."""

from gigpo_jax.envs.cards.card_entry import COMPAT_OPTION, card_entry
from gigpo_jax.envs.ezpoints.prompt import RULES

ENVIRONMENT = card_entry("ezpoints", RULES, max_steps=8, compat=COMPAT_OPTION)
