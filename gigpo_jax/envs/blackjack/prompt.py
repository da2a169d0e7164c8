"""The prompt and the actions of Blackjack."""

from gigpo_jax.envs.cards.prompt import Rules

ACTIONS = ("stand", "hit")
RULES = Rules(
    "You play Blackjack. The sum of your cards must be above the dealer's and not above 21. "
    'Numbers count their value, J, Q and K 10, an ace 1 or 11. "hit" gives you one more card; '
    'above 21 you lose. "stand" ends your turn; then the dealer turns the hidden card and draws '
    "until the sum is 17 or more. Reward 1 for a win, 0 for a draw or a loss.",
    ACTIONS,
)
