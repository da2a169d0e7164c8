"""The prompt and the actions of Points24."""

from gigpo_jax.envs.cards.prompt import Rules

TARGET = 24
OPERATORS = "+-*/()"
ACTIONS = (*map(str, range(1, 11)), *OPERATORS, "=")
RULES = Rules(
    "You play Points24. Build a formula that uses the number of each card exactly once and has "
    f"the value {TARGET}. An ace counts 1; J, Q and K count 10. In each turn you add one number, "
    "operator or parenthesis to the formula shown; a number that no card is left for changes "
    'nothing. "=" ends the game: reward 10 if the formula is right, else 0.',
    ACTIONS,
)
