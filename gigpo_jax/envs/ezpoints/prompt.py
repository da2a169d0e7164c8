"""The prompt and the actions of EZPoints."""

from gigpo_jax.envs.cards.prompt import Rules

TARGET = 12
OPERATORS = "+*"
ACTIONS = (*map(str, range(1, 11)), *OPERATORS, "=")
RULES = Rules(
    "You play EZPoints. Build a formula that uses the number of each card exactly once and has "
    f"the value {TARGET}. J, Q and K count 10. In each turn you add one number or operator to the "
    'formula shown; a number that no card is left for changes nothing. "=" ends the game: reward '
    "10 if the formula is right, otherwise 0.",
    ACTIONS,
)
